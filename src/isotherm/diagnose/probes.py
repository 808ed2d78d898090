"""Curvature and gradient noise of a task at one point of its training, within a time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd as _Dropout

from isotherm.core.statistics import Interval
from isotherm.diagnose.diagnosis import Probe
from isotherm.errors import UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task
from isotherm.theory.batch_gradients import CoupledExamplesError
from isotherm.theory.curvature import sampled_sharpness
from isotherm.theory.hessian import Hessian, NotFiniteError, hessian_of_task
from isotherm.theory.noise_measurement import Measurement, noise_scale_of_task

# Training examples of the Hessian and number of blocks, best first; the best that time allows is used.
HESSIAN_SIZES = ((1024, 8), (512, 8), (256, 4), (64, 2))
# Approximate number of Hessian-vector products per eigenvalue.
_PRODUCTS_PER_EIGENVALUE = 15
# Small batch, large batch and number of draws of the noise measurement, best first.
NOISE_SIZES = ((16, 256, 64), (16, 128, 32), (8, 64, 16))


@dataclass(kw_only=True)
class Prober:
    """Measures a task at points of its training; what cannot be measured is reported to `on_missing` and left out.

    Args:
        task: what is trained.
        seed: of the examples.
        device: to compute on.
        on_missing: called with the reason for every omission.
        now: returns the time in seconds.
    """

    task: Task
    seed: int
    device: str
    on_missing: Callable[[str], None]
    now: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self._has_curvature = True
        self._mode: Literal["train", "evaluate"] = "train"

    def at(self, step: int, parameters: Mapping[str, Tensor] | None, *, seconds: float) -> Probe:
        """Measure at given parameters, by default the initial ones, in about the given number of seconds.

        Raises:
            UserError: the loss is not finite, or nothing has a gradient: no diagnosis makes sense.
        """
        noise = self._noise(step, parameters, seconds=seconds / 2)
        sharpness, num_examples = self._sharpness(step, parameters, seconds=seconds / 2)
        return Probe(step=step, sharpness=sharpness, noise_scale=noise, num_examples=num_examples, mode=self._mode)

    # -- noise ----------------------------------------------------------------------------------------------------

    def _noise(self, step: int, parameters: Mapping[str, Tensor] | None, *, seconds: float) -> Interval | None:
        sizes = [size for size in self._noise_sizes() if size[1] <= self._num_examples()]
        if not sizes:
            self.on_missing(
                f"gradient noise: {self._num_examples()} training examples are too few for two batch sizes; "
                "give more, the noise scale needs a small and a large batch"
            )
            return None
        start = self.now()
        try:
            found = self._measured(sizes[-1], parameters)
        except CoupledExamplesError as error:
            if self._mode == "evaluate":
                raise
            self._mode = "evaluate"
            self.on_missing(f"gradient noise in training mode: {error.reason}; it is measured in evaluation mode")
            found = self._measured(sizes[-1], parameters)
        took, cost = self.now() - start, math.prod(sizes[-1][1:])
        affordable = [size for size in sizes[:-1] if took * math.prod(size[1:]) / cost <= seconds]
        return self._measured(affordable[0], parameters) if affordable else found

    def _measured(self, size: tuple[int, int, int], parameters: Mapping[str, Tensor] | None) -> Interval:
        small, large, draws = size
        measurement = Measurement(
            small_batch_size=small, large_batch_size=large, num_draws=draws, mode=self._mode, seed=self.seed
        )
        found = noise_scale_of_task(self.task, parameters=parameters, measurement=measurement, device=self.device)
        return found.gradient_noise_scale

    def _num_examples(self) -> int:
        return self.task.num_train // (self.task.unroll or 1)

    def _noise_sizes(self) -> list[tuple[int, int, int]]:
        """Return the batch sizes; with ghost batch norm the small batch is a ghost batch."""
        modules = initial_model(self.task.model, seed=0).modules()
        ghosts = {module.ghost_size for module in modules if isinstance(module, GhostBatchNorm2d)}
        if not ghosts:
            return list(NOISE_SIZES)
        size = max(ghosts)
        return [(size, size * large // small, draws // 2) for small, large, draws in NOISE_SIZES]

    # -- curvature ------------------------------------------------------------------------------------------------

    def _sharpness(
        self, step: int, parameters: Mapping[str, Tensor] | None, *, seconds: float
    ) -> tuple[Interval | None, int]:
        if not self._has_curvature:
            return None, 0
        try:
            return self._sampled(step, parameters, seconds=seconds)
        except NotFiniteError:
            raise
        except UserError as error:
            self._has_curvature = False
            self.on_missing(f"curvature: {error.reason}")
            return None, 0

    def _sampled(
        self, step: int, parameters: Mapping[str, Tensor] | None, *, seconds: float
    ) -> tuple[Interval | None, int]:
        sizes = [size for size in HESSIAN_SIZES if size[0] <= self._num_examples()]
        if not sizes:
            raise UserError(
                f"only {self._num_examples()} training examples; at least {HESSIAN_SIZES[-1][0]} are needed"
            )
        smallest, blocks = sizes[-1]
        hessian = self._hessian(parameters, num_examples=smallest)
        start = self.now()
        hessian.product(hessian.gradient())
        of_product = (self.now() - start) / smallest
        # An eigenvalue over all examples, one without each block, and a few more products.
        costs = [n * of_product * _PRODUCTS_PER_EIGENVALUE * (k + 2) for n, k in sizes]
        affordable = [size for size, cost in zip(sizes, costs, strict=True) if cost <= seconds]
        if not affordable:
            if costs[-1] > 4 * seconds:
                raise UserError(
                    f"it would take about {costs[-1]:.2g} s over {smallest} examples; give more minutes, at least "
                    f"{math.ceil(costs[-1] / 60 * 12)}"
                )
            affordable = [(smallest, blocks)]
        num_examples, blocks = affordable[0]
        hessian = hessian if num_examples == smallest else self._hessian(parameters, num_examples=num_examples)
        found = sampled_sharpness(hessian, num_blocks=blocks, tolerance=1e-2, seed=self.seed)
        if not found.of_all > 0:
            raise UserError(f"at update {step} no direction curves upwards, so curvature sets no limit")
        low = max(found.interval.low, found.of_all / 8)
        high = max(found.interval.high, found.of_all)
        return Interval(estimate=found.of_all, low=min(low, found.of_all), high=high), num_examples

    def _hessian(self, parameters: Mapping[str, Tensor] | None, *, num_examples: int) -> Hessian:
        module = initial_model(self.task.model, seed=self.seed)
        if parameters is not None:
            module.load_state_dict(dict(parameters))
        return hessian_of_task(
            self.task,
            module,
            # Running statistics mean nothing at the start; dropout would change the loss from pass to pass.
            mode="train" if has_layer(module, GhostBatchNorm2d) and not has_layer(module, _Dropout) else "eval",
            num_examples=num_examples,
            subset_seed=self.seed,
            precision="float32",
            device=self.device,
        )


def has_layer(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Tell whether a module has a layer of a given type."""
    return any(isinstance(part, kind) for part in module.modules())
