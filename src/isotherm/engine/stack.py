"""Some runs trained as one program: their state, and the updates in blocks.

On a CPU a stack is a whole fleet. On a GPU it is one for networks of matrix products, and where there are kernels for
convolutions of many runs; else every run of a network with convolutions has a stack of its own, with its own stream.

Shape suffixes: M runs, S seeds, K updates of a block, B batch; `parameters_M` maps names to tensors with M in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from isotherm.core.l2 import is_penalised
from isotherm.core.records import CurvePoint, RunSpec
from isotherm.core.schedule import multipliers
from isotherm.engine.batches import Blocks
from isotherm.engine.checkpoint import State
from isotherm.engine.dropout import run_keys
from isotherm.engine.evaluation import Tensors
from isotherm.engine.graph.trace import has_plain_convolutions, trace, writes
from isotherm.engine.lazy_reader import Reader
from isotherm.engine.parameters import Settings, Weights
from isotherm.engine.placed_task import (
    PlacedTask,
    evaluation_steps,
    exact_arithmetic,
    ghost_layers,
    is_out_of_memory,
    running_window,
)
from isotherm.engine.programs.cpu import FixedProgram
from isotherm.engine.programs.cuda_graph import Recording, capture
from isotherm.engine.programs.gpu import Call, Program, Update, gpu_program, update_of
from isotherm.errors import UserError
from isotherm.kernels import availability
from isotherm.kernels.dispatch import by_kernels

# Updates between two looks at the losses; a diverged run wastes at most this many.
BLOCK = 64
# A new size needs a new trace, so a stack shrinks when this part of it has diverged.
SHRINK_FRACTION = 1 / 8
# On a GPU a program that will run so often is compiled first, which takes a minute.
UPDATES_WORTH_COMPILING = 5_000

# Of each run: clipped updates, sum of the losses of the last epoch, last loss.
_COUNTS = ("num_clipped_M1", "running_M", "last_M")


class NotVectorisable(Exception):
    """The module cannot be trained as a fleet; the text says why."""


class Listeners:
    """Who is told what while a fleet trains."""

    def __init__(
        self,
        on_steps: Callable[[int], None],
        on_look: Callable[[int, CurvePoint], None],
        on_trained: Callable[[int, Tensors], None],
    ) -> None:
        self.on_steps, self.on_look, self.on_trained = on_steps, on_look, on_trained


class RunStack:
    """State of the runs that are still alive, and where each came from."""

    def __init__(
        self,
        placed: PlacedTask,
        specs: Sequence[RunSpec],
        listeners: Listeners,
        *,
        block: int = BLOCK,
        first_index: int = 0,
    ) -> None:
        self.placed = placed
        self.block = block
        self.listeners = listeners
        self.first_index = first_index  # where the caller counts from
        self.specs = list(specs)
        first = specs[0]
        self.batch_size, self.num_steps = first.batch_size, first.num_steps
        self.clips = first.clip_norm is not None
        self.evaluate_at = evaluation_steps(first)
        self.window = running_window(first, placed)
        # Convolutions of many runs by kernels read filters with the channels last.
        self.convolves = placed.convolves_together(self.batch_size)
        # One run alone needs no vectorisation; on a GPU its images and filters have the channels last.
        self.is_single = len(specs) == 1 and not self.convolves
        self.channels_last = self.is_single and placed.device.type == "cuda"
        # Products of many runs in half precision read copies of the matrices, which every update renews.
        self.takes_halves = not self.is_single and placed.is_mixed and placed.device.type == "cuda"

        self.seeds = sorted({s.seed for s in specs})
        models = [placed.model(seed=seed, batch_size=self.batch_size) for seed in self.seeds]
        self.module = models[0]
        self.layers = ghost_layers(self.module) if placed.reestimates else {}
        place = torch.tensor([self.seeds.index(s.seed) for s in specs], device=placed.device)
        self.seed_M = place
        self.orders = [placed.order(seed=seed, batch_size=self.batch_size) for seed in self.seeds]
        self.blocks = Blocks(
            self.orders, size=block, num_steps=self.num_steps, looks=self.evaluate_at, device=placed.device
        )
        self.key_M = torch.stack([run_keys(seed) for seed in self.seeds]).to(placed.device)[place]
        stacked = _stack(models, place)
        named = dict(self.module.named_parameters())
        trainable = [name for name, p in named.items() if p.requires_grad]
        # The loss does not depend on all that L2 covers, and SGD leaves such parameters alone: L2 does not move them.
        self.penalised = [name for name in trainable if is_penalised(named[name], scope=first.l2_scope)]
        self.weights = Weights(
            {name: stacked[name] for name in trainable},
            decayed=set(self.penalised) - self._unused_parameters(),
            channels_last=self.channels_last or self.convolves,
            aligns=self.takes_halves,
        )
        self.fixed_M = {name: stacked[name] for name, p in named.items() if not p.requires_grad}
        self.buffers_M = {name: stacked[name].clone() for name, _ in self.module.named_buffers()}

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64, device=placed.device).to(placed.dtype).unsqueeze(1)

        self.settings = Settings(
            momentum_M1=column([s.momentum for s in specs]),
            l2_M1=column([s.l2 for s in specs]) if any(s.l2 > 0 for s in specs) else None,
            clip_M1=column([s.clip_norm or math.inf for s in specs]) if self.clips else None,
        )
        self.index_M = list(range(len(specs)))
        self.dead: dict[int, int] = {}  # original index -> divergence step
        self.curves: list[list[CurvePoint]] = [[] for _ in specs]
        self.num_clipped_M1 = torch.zeros(len(specs), 1, dtype=torch.float64, device=placed.device)
        self.running_M = torch.zeros(len(specs), dtype=torch.float64, device=placed.device)
        self.last_M = torch.zeros_like(self.running_M)
        self.num_done = 0  # updates
        self._size = 0  # of the block under way
        self._program: Program | None = None
        self._halves: list[Tensor] = []  # rounded copies of blocks that it reads
        self._update: Update | None = None
        self._shared: RunStack | None = None
        self._recording: Recording | None = None
        self._stream: torch.cuda.Stream | None = None
        self.reader = Reader(placed, self.orders, self.seeds) if placed.is_lazy else None
        if placed.device.type == "cuda":
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._allocate()

    def _allocate(self) -> None:
        """Make the tensors that an update reads and writes besides the runs' states; they stay where they are."""
        device, num = self.placed.device, len(self.index_M)
        shape = self.orders[0].block(0, 1).shape[1:]
        num_rows = max(self.block, 3)  # before an update is recorded it is tried twice
        self._batches_KMB = torch.zeros(num_rows, num, *shape, dtype=torch.int64, device=device)
        self._rates_KM1 = torch.zeros(num_rows, num, 1, dtype=self.placed.dtype, device=device)
        self._losses_KM = torch.zeros(num_rows, num, dtype=self.placed.dtype, device=device)
        # Row of the block and number of the update, which one addition moves on; 16 bytes apart, as kernels like it.
        self._counters = torch.zeros(3, dtype=torch.int64, device=device)
        self._place, self.step = self._counters[:1], self._counters[2]
        self._read: tuple[Tensor, Tensor] | None = None  # a batch from disk
        # Where an update finds its batch on a CPU: inputs and targets (M, B, ...).
        self._own_batch: tuple[Tensor, Tensor] | None = None
        if device.type == "cpu" and not self.placed.is_lazy:
            inputs, targets = self.placed.splits["train"]
            x_MB, y_MB = (
                torch.empty(num, *shape, *values.shape[1:], dtype=values.dtype) for values in (inputs, targets)
            )
            self._own_batch = x_MB, y_MB

    def share_program(self, other: RunStack) -> None:
        """Use another fleet's program, which has the same shapes."""
        self._shared = other

    def _unused_parameters(self) -> set[str]:
        """Return the trainable parameters that the loss does not depend on: plain SGD never touches them."""
        module = self.placed.model(seed=self.seeds[0], batch_size=self.batch_size).train()
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        try:
            x, y = self._first_batch()
            loss = self.placed.training_loss(module, x, y, self.key_M[0], torch.zeros_like(self.seed_M[0]))
            gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
        except Exception as error:  # the reference will show what is wrong with it
            if is_out_of_memory(error) or isinstance(error, UserError):
                raise
            raise NotVectorisable(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error
        return {name for name, gradient in zip(trainable, gradients, strict=True) if gradient is None}

    def _first_batch(self) -> tuple[Tensor, Tensor]:
        index = self.orders[0].block(0, 1)[0]
        if self.placed.is_lazy:
            return self.placed.lazy_batch(index, seed=self.seeds[0], step=0)
        return self.placed.training_batch(torch.from_numpy(index).to(self.placed.device))

    # -- one update ---------------------------------------------------------------------------------------------

    def over_runs(self, function: Callable[..., Any], in_dims: tuple[int | None, ...]) -> Callable[..., Any]:
        """Return a function of one run as one of all runs; of a single run without `vmap`."""
        if not self.is_single:
            vectorised = vmap(function, in_dims=in_dims)
            return by_kernels(vectorised) if self.convolves else vectorised

        def single(*arguments: Any) -> Any:
            alone = [
                torch.utils._pytree.tree_map(lambda t: t[0], argument) if dim == 0 else argument
                for argument, dim in zip(arguments, in_dims, strict=True)
            ]
            return torch.utils._pytree.tree_map(lambda t: t.unsqueeze(0), function(*alone))

        return single

    def _loss_of_run(
        self,
        parameters: Tensors,
        fixed: Tensors,
        buffers: Tensors,
        x: Tensor,
        y: Tensor,
        keys: Tensor,
        step: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, Tensors]]:
        after = {name: buffer.clone() for name, buffer in buffers.items()}

        def call(*arguments: Tensor) -> Any:
            return functional_call(self.module, (parameters, fixed, after), arguments)

        loss = self.placed.training_loss(call, x, y, keys, step, channels_last=self.channels_last)
        return loss * self.placed.scale_of_objective(), (loss, after)

    def _step_function(self) -> Call:
        """Return the fleet's step on tensors alone: states, x, y, keys, step -> losses, gradients, buffers.

        Parameters come, and their gradients go, as the blocks of `weights`.
        """
        gradient = self.over_runs(grad_and_value(self._loss_of_run, has_aux=True), in_dims=(0, 0, 0, 0, 0, 0, None))
        groups = [list(self.fixed_M), list(self.buffers_M)]
        num_blocks = len(self.weights.values)

        def step_function(*tensors: Tensor) -> tuple[Tensor, ...]:
            rest = iter(tensors)
            parameters = self.weights.parameters([next(rest) for _ in range(num_blocks)])
            states = [{name: next(rest) for name in names} for names in groups]
            gradients, (_, (losses, buffers)) = gradient(parameters, *states, *rest)
            return losses, *self.weights.gradients(gradients), *(buffers[name] for name in groups[1])

        return step_function

    def prepare_program(self, x_MB: Tensor, y_MB: Tensor) -> None:
        """Trace the step for the fleet's present size."""
        self.module.train()
        if self.placed.device.type == "cpu" and self._own_batch is None:
            self._own_batch = x_MB.clone(), y_MB.clone()
        states = [*self.weights.values, *self.fixed_M.values(), *self.buffers_M.values()]
        traced = trace(self._step_function(), *states, x_MB, y_MB, self.key_M, torch.zeros_like(self.step))
        if self.convolves and has_plain_convolutions(traced.graph):
            raise NotVectorisable("the kernels are not made for convolutions of images with such sides")
        if writes(traced):
            self._program = Program(call=traced.forward)
        elif self._own_batch is None:
            takes_factors = availability.are_available(self.placed.device) and not self.clips
            self._program = gpu_program(
                traced, self.weights, takes_halves=self.takes_halves, takes_factors=takes_factors
            )
        else:
            fixed = FixedProgram(traced, [*states, *self._own_batch, self.key_M, self.step])
            self._program = Program(call=lambda *_: fixed())

    def forward_backward(
        self, x_MB: Tensor, y_MB: Tensor, step: Tensor
    ) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        """Return losses (M,), gradients of the blocks, and buffers after the forward pass."""
        if self._program is None:
            self.prepare_program(x_MB, y_MB)
        assert self._program is not None
        if self._own_batch is not None:  # the program may look nowhere else
            for own, new in zip((*self._own_batch, self.step), (x_MB, y_MB, step), strict=True):
                own.copy_(new)
        states = self.weights.values, list(self.fixed_M.values()), list(self.buffers_M.values())
        return self._program.gradients(*states, x_MB, y_MB, self.key_M, step)

    def _renew_halves(self) -> None:
        """Round the weights anew for the program that was made for them, if there is one."""
        if self._update is not None:
            assert self._program is not None
            for copy, value in zip(self._halves, self._program.rounded(self.weights.values), strict=True):
                copy.copy_(value)

    def _batch(self, index_MB: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
        """Return a batch and None, or all data and the index of the batch in them."""
        if self._read is not None:
            inputs, targets = self._read
            index_MB = self.seed_M
        else:
            inputs, targets = self.placed.splits["train"]  # type: ignore[assignment]
            if self._own_batch is None:
                return (inputs, targets), index_MB
        if self._own_batch is None:
            return (inputs[index_MB], targets[index_MB]), None
        for values, own in zip((inputs, targets), self._own_batch, strict=True):
            index = index_MB.view(-1)
            torch.index_select(values, 0, index, out=own.view(len(index), *values.shape[1:]))
        return self._own_batch, None

    def _make_update(self, index_MB: Tensor, rate_M1: Tensor) -> Tensor:
        """Make the update `step` and return the losses (M,)."""
        if self._update is None:
            self._prepare_update(index_MB)
        assert self._update is not None
        return self._update(
            self.weights.values,
            self.weights.velocities,
            self._halves,
            list(self.fixed_M.values()),
            list(self.buffers_M.values()),
            *self._batch(index_MB),
            self.key_M,
            self.step,
            learning_rate_M1=rate_M1,
            num_clipped_M1=self.num_clipped_M1,
            settings=self.settings,
        )

    def _prepare_update(self, index_MB: Tensor) -> None:
        """Make the update for the fleet's present size, or take that of another with the same shapes."""
        if self._shared is not None:
            self._program, self._update = self._shared._program, self._shared._update
        else:
            if self._program is None:
                batch, index = self._batch(index_MB)
                self.prepare_program(*(batch if index is None else (values[index] for values in batch)))
            assert self._program is not None
            pays = self.num_steps - self.num_done >= UPDATES_WORTH_COMPILING
            self._update = update_of(
                self._program, self.weights, is_compiled=pays and self.placed.device.type == "cuda"
            )
        assert self._program is not None
        self._halves = self._program.rounded(self.weights.values)

    def _recorded_update(self) -> None:
        """Make the update that `_place` and `step` point to, and move both on: the same operations every time."""
        index_MB, rate_M1 = (rows.index_select(0, self._place)[0] for rows in (self._batches_KMB, self._rates_KM1))
        losses_M = self._make_update(index_MB, rate_M1)
        self._losses_KM.index_copy_(0, self._place, losses_M.to(self._losses_KM.dtype).unsqueeze(0))
        self._counters += 1

    # -- a block of updates -------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Tell whether all updates were made, or no run is left."""
        return self.num_done >= self.num_steps or len(self.dead) == len(self.specs)

    def start_block(self) -> None:
        """Begin the next updates; on a GPU they are under way when this returns."""
        self._size = self.blocks.size_from(self.num_done)
        rows = slice(0, self._size)
        self._rates_KM1[rows].copy_(self._learning_rates(self.num_done, self._size))
        if self.reader is None:
            torch.index_select(self.blocks.examples(self.num_done), 1, self.seed_M, out=self._batches_KMB[rows])
        self._place.zero_()
        self.step.fill_(self.num_done)
        if self.reader is not None and self._read is None:
            self._take(self.reader.batch(self.num_done, last=self.num_done))  # nothing is read ahead yet
        if self._stream is None:
            for offset in self._offsets():
                self._losses_KM[offset] = self._make_update(self._batches_KMB[offset], self._rates_KM1[offset])
                self.step += 1
            return
        if self._recording is None:
            self._capture()
        assert self._recording is not None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            if self.reader is None:
                self._recording.play(self._size)
                return
            for _ in self._offsets():
                self._recording.play()

    @property
    def is_asynchronous(self) -> bool:
        """Tell whether updates are under way while the caller does something else: on a GPU."""
        return self._stream is not None

    def draw_ahead(self) -> None:
        """Draw the examples of the block after the one under way."""
        if self.reader is None:
            self.blocks.draw_ahead(self.num_done + self._size)

    def _offsets(self) -> Iterator[int]:
        """Count the updates of the block; where inputs come from disk, with those of the update in place."""
        for offset in range(self._size):
            if self.reader is not None:
                self._take(self.reader.batch(self.num_done + offset, last=self.num_steps - 1))
            yield offset

    def _take(self, batch: tuple[Tensor, Tensor]) -> None:
        """Put a batch from disk where the update reads it."""
        if self._read is None:
            self._read = batch
            return
        if self._stream is not None:  # what was read ahead came to the GPU on the default stream
            self._stream.wait_stream(torch.cuda.default_stream())
        for old, new in zip(self._read, batch, strict=True):
            old.copy_(new)
            if self._stream is not None:
                new.record_stream(self._stream)

    def _capture(self) -> None:
        """Record an update; the trial calls before it also let cuDNN choose the fastest convolutions."""
        changed = [*self.weights.values, *self.weights.velocities, *self.buffers_M.values(), self.num_clipped_M1]
        with exact_arithmetic(self.placed.device, tries_convolutions=True):
            self._recording = capture(
                self._recorded_update,
                keep=[*changed, self._losses_KM, self._counters],
                stream=self._stream,
                also_several=self.reader is None,
            )
        self._renew_halves()  # the trial calls made and changed them

    def finish_block(self) -> None:
        """Wait for the updates under way and note what they gave."""
        if self._stream is not None:
            self._stream.synchronize()
        size, start = self._size, self.num_done
        losses_KM = self._losses_KM[:size].double()
        in_window = max(0, start + size - (self.num_steps - self.window))
        self.running_M = self.running_M + losses_KM[size - min(size, in_window) :].sum(dim=0)
        self.last_M = losses_KM[-1].clone()
        self.listeners.on_steps(size * (len(self.specs) - len(self.dead)))
        self._note_divergence(losses_KM, start)
        self.num_done += size

    def state(self) -> State:
        """Return all that later updates and the results depend on besides the specs."""
        return {
            "done": self.num_done,
            "runs": list(self.index_M),
            "diverged": [[index, step] for index, step in self.dead.items()],
            "curves": [[[p.step, p.test_loss, p.test_metric] for p in curve] for curve in self.curves],
            "values": list(self.weights.values),
            "velocities": list(self.weights.velocities),
            "buffers": dict(self.buffers_M),
            "counts": [getattr(self, name) for name in _COUNTS],
        }

    def can_go_on_from(self, state: State) -> bool:
        """Tell whether a state is laid out as this program's is."""
        ours, theirs = ([value.shape[1:] for value in values] for values in (self.weights.values, state["values"]))
        return ours == theirs

    def restore(self, state: State) -> None:
        """Go on from a state of the same specs."""
        if state["runs"] != self.index_M:
            self._keep_runs(state["runs"])
        self.num_done = state["done"]
        self.dead = dict(state["diverged"])
        self.curves = [
            [CurvePoint(step=step, test_loss=loss, test_metric=metric) for step, loss, metric in curve]
            for curve in state["curves"]
        ]
        for ours, theirs in (
            (self.weights.values, state["values"]),
            (self.weights.velocities, state["velocities"]),
            (list(self.buffers_M.values()), [state["buffers"][name] for name in self.buffers_M]),
            ([getattr(self, name) for name in _COUNTS], state["counts"]),
        ):
            for old, new in zip(ours, theirs, strict=True):
                old.copy_(new)
        self._renew_halves()

    def _learning_rates(self, start: int, num_steps: int) -> Tensor:
        """Return every run's learning rate for a block of updates, shape (K, M, 1)."""
        specs = [self.specs[index] for index in self.index_M]
        schedules = {
            gamma: multipliers(self.num_steps, gamma=gamma, start=start, stop=start + num_steps)
            for gamma in {spec.gamma for spec in specs}
        }
        columns = [spec.learning_rate * schedules[spec.gamma] for spec in specs]
        return torch.from_numpy(np.stack(columns, axis=1)).to(self.placed.dtype).unsqueeze(2)

    def _note_divergence(self, losses_KM: Tensor, start: int) -> None:
        bad_KM = ~torch.isfinite(losses_KM)
        for place in bad_KM.any(dim=0).nonzero().flatten().tolist():
            first = int(bad_KM[:, place].to(torch.int8).argmax())
            self.dead.setdefault(self.index_M[place], start + first)

    def note_looks(self, looks: Sequence[CurvePoint]) -> None:
        """Keep what a look at the test set gave every run that is left, and tell of it."""
        for index, point in zip(self.index_M, looks, strict=True):
            self.curves[index].append(point)
            if index not in self.dead:
                self.listeners.on_look(self.first_index + index, point)

    @property
    def wants_a_look(self) -> bool:
        """Tell whether the test set is to be looked at now."""
        return self.num_done in self.evaluate_at and len(self.dead) < len(self.specs)

    def shrink(self) -> None:
        """Let diverged runs leave when enough have."""
        alive = [place for place, index in enumerate(self.index_M) if index not in self.dead]
        if len(self.index_M) - len(alive) < max(1, SHRINK_FRACTION * len(self.index_M)):
            return
        self._keep_runs(alive)

    def _keep_runs(self, places: Sequence[int]) -> None:
        """Let only the runs at these places stay."""
        keep = torch.tensor(places, dtype=torch.int64, device=self.placed.device)
        for tensors in (self.fixed_M, self.buffers_M):
            for name, tensor in tensors.items():
                tensors[name] = tensor[keep]
        self.weights.select(keep)
        self.settings = self.settings.select(keep)
        for name in ("seed_M", "key_M", *_COUNTS):
            setattr(self, name, getattr(self, name)[keep])
        self.index_M = [self.index_M[place] for place in places]
        self._program, self._update, self._recording = None, None, None
        self._halves = []
        self._allocate()


def _stack(models: Sequence[nn.Module], place: Tensor) -> Tensors:
    """Return parameters and buffers of the runs' initial models with the runs in front."""
    names = [name for name, _ in [*models[0].named_parameters(), *models[0].named_buffers()]]
    tensors = [dict([*m.named_parameters(), *m.named_buffers()]) for m in models]
    return {name: torch.stack([t[name].detach() for t in tensors])[place] for name in names}
