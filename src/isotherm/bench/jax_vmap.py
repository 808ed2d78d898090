"""Many runs of a network of linear layers in JAX: `vmap` over the runs, `scan` over updates, compiled by `jit`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from typing import Any

import numpy as np
from torch import nn

from isotherm.bench.plain import WARM_UP
from isotherm.bench.tasks import timed_task
from isotherm.bench.workloads import MOMENTUM, Workload
from isotherm.core.l2 import is_penalised
from isotherm.core.temperature import bare_learning_rate
from isotherm.running.timing import Turn
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task

TASKS = ("mlp_mnist1d", "autoencoder_mnist")
# Updates per call.
BLOCK = 64


def why_no_jax(workload: Workload) -> str | None:
    """Return why a workload cannot be timed in JAX here, or None."""
    if importlib.util.find_spec("jax") is None:
        return "jax is not installed"
    return None if workload.task in TASKS else f"written for {' and '.join(TASKS)} only"


class JaxFleet:
    """All runs of a workload as one program; batches are cut from a fresh permutation per seed and epoch.

    Args:
        task: a sequence of linear layers and activations, with its loss and data.
        workload: runs, batch size, learning rates, precision and device.
    """

    def __init__(self, task: Task, workload: Workload) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU is shared with the other contender
        self._jax, self._np = importlib.import_module("jax"), importlib.import_module("jax.numpy")
        self._task, self._workload = task, workload
        self._layers = _layers(initial_model(task.model, seed=0))
        self._device = self._jax.devices("gpu" if workload.device == "cuda" else "cpu")[0]
        x, y = (np.asarray(values) for values in task.train)
        self._x, self._y = self._put(x), self._put(y)
        seeds = [initial_model(task.model, seed=seed) for seed in range(workload.num_seeds)]
        self._seed_M = np.repeat(np.arange(workload.num_seeds), workload.num_rates)
        models = [_weights(seeds[seed]) for seed in self._seed_M]
        stacked = [tuple(np.stack(parts) for parts in zip(*layer, strict=True)) for layer in zip(*models, strict=True)]
        self.parameters = self._put(stacked)
        self._velocity = self._jax.tree_util.tree_map(self._np.zeros_like, self.parameters)
        rates = [
            bare_learning_rate(workload.rate * 2.0**-place, momentum=MOMENTUM) for place in range(workload.num_rates)
        ]
        self._rate_M = self._put(np.tile(np.asarray(rates, dtype=np.float32), workload.num_seeds))
        self._l2 = task.l2 if workload.l2 is None else workload.l2
        self._generators = [np.random.default_rng(seed) for seed in range(workload.num_seeds)]
        self._rest_S = np.zeros((workload.num_seeds, 0), dtype=np.int32)
        self._block = self._jax.jit(self._scanned, donate_argnums=(0, 1))

    def run_block(self, indices_KSB: Any = None) -> None:
        """Take one call's updates with all runs; the examples are drawn unless given."""
        if indices_KSB is None:
            indices_KSB = self._drawn()
        indices_KMB = self._put(indices_KSB[:, self._seed_M])
        self.parameters, self._velocity = self._block(
            self.parameters, self._velocity, indices_KMB, self._rate_M, self._x, self._y
        )

    def speed(self, seconds: float) -> float:
        """Return run-updates per second in a window of this many seconds."""
        start, num = time.perf_counter(), 0
        while time.perf_counter() - start < seconds or num == 0:
            self.run_block()
            self._jax.block_until_ready(self.parameters)
            num += BLOCK * self._workload.num_runs
        return num / (time.perf_counter() - start)

    def _put(self, values: Any) -> Any:
        return self._jax.device_put(values, self._device)

    def _drawn(self) -> Any:
        wanted, num = BLOCK * self._workload.batch_size, len(self._task.train[0])
        while self._rest_S.shape[1] < wanted:
            fresh = np.stack([generator.permutation(num) for generator in self._generators]).astype(np.int32)
            whole = num - num % self._workload.batch_size
            self._rest_S = np.concatenate((self._rest_S, fresh[:, :whole]), axis=1)
        drawn_S, self._rest_S = self._rest_S[:, :wanted], self._rest_S[:, wanted:]
        return drawn_S.reshape(self._workload.num_seeds, BLOCK, self._workload.batch_size).transpose(1, 0, 2)

    def _scanned(self, parameters: Any, velocity: Any, indices_KMB: Any, rate_M: Any, x: Any, y: Any) -> Any:
        over_runs = self._jax.vmap(self._update, in_axes=(0, 0, 0, 0, None, None))

        def body(carry: Any, indices_MB: Any) -> Any:
            return over_runs(*carry, indices_MB, rate_M, x, y), None

        return self._jax.lax.scan(body, (parameters, velocity), indices_KMB)[0]

    def _update(self, parameters: Any, velocity: Any, index: Any, rate: Any, x: Any, y: Any) -> Any:
        tree_map = self._jax.tree_util.tree_map
        gradients = self._jax.grad(self._loss)(parameters, x[index], y[index])

        def decayed(gradient: Any, weight: Any) -> Any:
            is_covered = is_penalised(weight, scope=self._task.l2_scope)
            return gradient + self._l2 * weight if is_covered and self._l2 else gradient

        velocity = tree_map(lambda v, g: MOMENTUM * v + g, velocity, tree_map(decayed, gradients, parameters))
        return tree_map(lambda w, v: w - rate * v, parameters, velocity), velocity

    def _loss(self, parameters: Any, x: Any, y: Any) -> Any:
        jnp = self._np
        if self._task.transform is not None:  # bytes
            x, y = (values.astype(jnp.float32) / 255.0 for values in (x, y))
        kind = jnp.bfloat16 if self._workload.precision == "mixed" else jnp.float32
        rest = iter(parameters)
        for layer in self._layers:
            if layer == "linear":
                weight, bias = next(rest)
                x = jnp.matmul(x.astype(kind), weight.astype(kind).T, preferred_element_type=jnp.float32) + bias
            else:
                x = {"relu": self._jax.nn.relu, "tanh": jnp.tanh, "sigmoid": self._jax.nn.sigmoid}[layer](x)
        if self._task.loss == "half_squared_error":
            return 0.5 * jnp.square(x - y).sum(axis=1).mean()
        return -jnp.take_along_axis(self._jax.nn.log_softmax(x), y[:, None], axis=1).mean()


def _layers(model: nn.Module) -> list[str]:
    return [type(part).__name__.lower() for part in model.children()]


def _weights(model: nn.Module) -> list[tuple[Any, Any]]:
    linear = [part for part in model.children() if isinstance(part, nn.Linear)]
    return [(part.weight.detach().numpy(), part.bias.detach().numpy()) for part in linear]


def jax_vmap(workload: Workload, turn: Turn) -> None:
    """Train all runs of a workload in JAX."""
    fleet = JaxFleet(timed_task(workload.task), workload)
    fleet.run_block()
    speed = None
    while (seconds := turn(speed)) is not None:
        fleet.speed(WARM_UP * seconds)
        speed = fleet.speed(seconds)
