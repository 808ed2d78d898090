"""The plain loop: one run, `torch.optim.SGD`, the data as tensors on the device. What most people write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from isotherm.bench.library import with_library_layers
from isotherm.bench.tasks import timed_task
from isotherm.bench.workloads import MOMENTUM, Workload
from isotherm.core.l2 import is_penalised
from isotherm.core.temperature import bare_learning_rate
from isotherm.engine.placed_task import matmuls_in_tf32
from isotherm.kernels.ops.registry import register_with_compiler
from isotherm.running.timing import Clock, Turn
from isotherm.tasks.seeding import initial_model
from isotherm.tasks.task import Task

# A window is preceded by this fraction of its length, untimed, with each number of threads tried.
WARM_UP = 0.1


class PlainLoop:
    """Trains one run endlessly, update by update.

    Every epoch is a fresh permutation without its incomplete last batch; a text is read in parallel streams that carry
    their state along. Nothing is logged. On a GPU images are channels last, and cuDNN may search for its fastest
    convolutions.

    Args:
        task: model, loss, data, transform and clipping.
        workload: batch size, learning rate, L2, device and precision; "mixed" is autocast to bfloat16.
        module: trained instead of the task's model.
        compiled: compile forward pass, loss and gradient.
        seed: of the initial weights and the data order.
    """

    def __init__(
        self, task: Task, workload: Workload, *, module: nn.Module | None = None, compiled: bool = False, seed: int = 0
    ) -> None:
        self.task, self.workload, self.device = task, workload, torch.device(workload.device)
        model = initial_model(task.model, seed=seed) if module is None else module
        self.model = model.to(self.device).train()
        inputs, targets = task.train
        assert isinstance(inputs, Tensor)
        self._inputs, self._targets = inputs.to(self.device), targets.to(self.device)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._is_mixed = workload.precision == "mixed"
        self._channels_last = self.device.type == "cuda" and inputs.ndim == 4
        if self._channels_last:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        l2 = task.l2 if workload.l2 is None else workload.l2
        decayed = [p for p in self._parameters if is_penalised(p, scope=task.l2_scope)]
        others = [p for p in self._parameters if not is_penalised(p, scope=task.l2_scope)]
        groups = [{"params": decayed, "weight_decay": l2}, {"params": others, "weight_decay": 0.0}]
        rate = bare_learning_rate(workload.rate, momentum=MOMENTUM)
        self.optimizer = torch.optim.SGD([g for g in groups if g["params"]], lr=rate, momentum=MOMENTUM)
        if compiled:
            torch._dynamo.reset()
            register_with_compiler()
        self._loss_and_state = torch.compile(self._forward, dynamic=False) if compiled else self._forward
        self.state: Tensor | None = None
        self._steps = self._updates()

    def step(self) -> None:
        """Take one update."""
        next(self._steps)

    def speed(self, seconds: float, *, clock: Clock = time.perf_counter) -> float:
        """Return updates per second in a window of this many seconds."""
        start, num = clock(), 0
        while clock() - start < seconds or num == 0:
            next(self._steps)
            num += 1
        self._wait()
        return num / (clock() - start)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _updates(self) -> Iterator[None]:
        while True:
            for x, y in self._batches() if self.task.unroll is None else self._stream_windows(self.task.unroll):
                self._update(x, y)
                yield

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        num, size = len(self._inputs), self.workload.batch_size
        order = torch.randperm(num, generator=self._generator, device=self.device)
        for start in range(0, num - size + 1, size):
            index = order[start : start + size]
            yield self._inputs[index], self._targets[index]

    def _stream_windows(self, unroll: int) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.workload.batch_size
        length = len(self._inputs) // size
        inputs, targets = (tokens[: size * length].view(size, length) for tokens in (self._inputs, self._targets))
        self.state = self.model.initial_state(size).to(self.device)  # type: ignore[operator]
        for start in range(0, length - unroll + 1, unroll):
            yield inputs[:, start : start + unroll], targets[:, start : start + unroll]

    def _update(self, x: Tensor, y: Tensor) -> None:
        if self.task.transform is not None:
            x, y = self.task.transform.train(x, self._bits), self.task.transform.targets(y)
        if self._channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._is_mixed):
            loss, self.state = self._loss_and_state(x, y, self.state)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.task.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self.task.clip_norm)
        self.optimizer.step()

    def _forward(self, x: Tensor, y: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the loss to differentiate, summed over the tokens of a window, and the state after it."""
        if state is None:
            return self.task.loss_function(self.model(x), y), None
        output, state = self.model(x, state)
        return self.task.loss_function(output, y) * x.shape[1], state.detach()

    def _bits(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randint(0, 2**32, shape, generator=self._generator, device=self.device)


def plain_loop(workload: Workload, turn: Turn, *, library: bool = False, compiled: bool = False, seed: int = 0) -> None:
    """Train one run of a workload by the plain loop; on a CPU with one thread or all, whichever is faster.

    Args:
        workload: what to train.
        turn: asks for the windows to time.
        library: use PyTorch's own layers instead of ours.
        compiled: compile forward pass, loss and gradient.
        seed: of the run.
    """
    torch.backends.cudnn.benchmark = True
    task = timed_task(workload.task)
    module = None
    if library:
        module = with_library_layers(initial_model(task.model, seed=seed), batch_size=workload.batch_size)
    loop = PlainLoop(task, workload, module=module, compiled=compiled, seed=seed)
    most = torch.get_num_threads()
    threads = sorted({1, most}) if workload.device == "cpu" else [most]
    try:
        with matmuls_in_tf32(workload.precision == "tf32"):  # as PyTorch's convolutions are by default
            for num in threads:
                torch.set_num_threads(num)
                for _ in range(3):  # compiles, allocates, lets cuDNN choose
                    loop.step()
            speed = None
            while (seconds := turn(speed)) is not None:
                torch.set_num_threads(max(threads, key=partial(_speed_with, loop, WARM_UP * seconds)))
                speed = loop.speed(seconds)
    finally:
        torch.set_num_threads(most)


def _speed_with(loop: PlainLoop, seconds: float, num_threads: int) -> float:
    torch.set_num_threads(num_threads)
    return loop.speed(seconds)
