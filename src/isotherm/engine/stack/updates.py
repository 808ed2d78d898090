"""The updates of a stack: traced, compiled and recorded once for its size, then made window by window.

Shape suffixes: M runs, K updates of a window, B batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, fx

from isotherm.engine.graph.kept_traces import copy_without_tensors
from isotherm.engine.graph.trace import has_plain_convolutions, trace, writes
from isotherm.engine.placed_task import arithmetic
from isotherm.engine.programs.cpu import PreallocatedProgram
from isotherm.engine.programs.cuda_graph import Recording, capture
from isotherm.engine.programs.gpu import Call, Gradients, Program, Update, gpu_program, gradients_of, update_of
from isotherm.engine.stack.accumulation import Accumulation
from isotherm.engine.stack.feed import Feed
from isotherm.engine.stack.model import NotVectorisable, StackedModel
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.stack.state import StackState
from isotherm.kernels import building


class Updates:
    """Makes updates of all runs of a stack; on a GPU they are under way when `start` returns.

    Args:
        plan: what is trained, and by which kind of program.
        model: the module as functions of stacked tensors.
        state: changed in place.
        feed: batches, learning rates and keys.
        stream: to record updates on and to replay them; None on a CPU.
    """

    def __init__(
        self, plan: StackPlan, model: StackedModel, state: StackState, feed: Feed, *, stream: torch.cuda.Stream | None
    ) -> None:
        self._plan, self._model, self._state, self._feed, self._stream = plan, model, state, feed, stream
        self._shared: Updates | None = None
        self._new_trace: tuple[Hashable, fx.Graph | None] | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the programs and make the tensors that an update writes, for the present number of runs."""
        placed, num_rows = self._plan.placed, self._feed.num_rows
        self._program: Program | None = None
        self._update: Update | None = None
        self._gradients: Gradients | None = None  # of a micro-batch, in place of an update
        self._sums = None if self._plan.micro_batches.is_whole else Accumulation(self._plan, self._state)
        self._recording: Recording | None = None
        self._bfloat16_copies: list[Tensor] = []
        self._size = 0  # of the window under way
        self._losses_KM = torch.zeros(num_rows, self._state.num_runs, dtype=placed.dtype, device=placed.device)
        # Offset in the window and number of the update, advanced by one addition; kernels like them 16 bytes apart.
        self._counters = torch.zeros(3, dtype=torch.int64, device=placed.device)
        self._offset, self._step = self._counters[:1], self._counters[2]

    def share_program(self, other: Updates) -> None:
        """Use the program of another stack with the same shapes."""
        self._shared = other

    @property
    def is_asynchronous(self) -> bool:
        """Tell whether updates are under way while the caller does something else: on a GPU."""
        return self._stream is not None

    @property
    def is_prepared(self) -> bool:
        """Tell whether there is a program for the present number of runs."""
        return self._program is not None

    @property
    def bfloat16_copies(self) -> Sequence[Tensor]:
        """The bfloat16 copies of parameter groups that the program reads."""
        return self._bfloat16_copies

    # -- a window of updates ----------------------------------------------------------------------------------------

    def start(self, first: int) -> None:
        """Begin the window of updates that starts with number `first`."""
        self._size = self._feed.window_size(first)
        self._feed.fill(first, self._size)
        self._offset.zero_()
        self._step.fill_(first)
        if self._stream is None:
            self._run(first)
        else:
            self._replay(first, self._stream)

    def _run(self, first: int) -> None:
        for offset in range(self._size):
            self._feed.read(first + offset)
            self._losses_KM[offset] = self._make_update(*self._feed.row(offset))
            self._step += 1

    def _replay(self, first: int, stream: torch.cuda.Stream) -> None:
        if self._recording is None:
            self._recording = self._recorded(stream)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            if not self._feed.reads_ahead:
                self._recording.play(self._size)
                return
            for offset in range(self._size):
                self._feed.read(first + offset)
                self._recording.play()

    def draw_ahead(self, first: int) -> None:
        """Draw the examples of the window after the one that starts with `first` and is under way."""
        self._feed.draw_ahead(first + self._size)

    def finish(self) -> Tensor:
        """Wait for the updates under way and return their losses (K, M) in float64, valid until the next window."""
        if self._stream is not None:
            self._stream.synchronize()
        return self._losses_KM[: self._size].double()

    # -- one update -------------------------------------------------------------------------------------------------

    def _make_update(self, index_MB: Tensor, rate_M1: Tensor) -> Tensor:
        """Make the update number `_step` and return the losses (M,)."""
        if self._sums is not None:
            return self._make_in_parts(self._sums, index_MB, rate_M1)
        if self._update is None:
            self._update = self._prepared_update(index_MB)
        state = self._state
        return self._update(
            state.weights.values,
            state.weights.moments,
            self._bfloat16_copies,
            list(state.fixed_M.values()),
            list(state.buffers_M.values()),
            *self._feed.batch(index_MB),
            self._feed.key_M,
            self._step,
            learning_rate_M1=rate_M1,
            num_clipped_M1=state.num_clipped_M1,
            settings=state.settings,
        )

    def _make_in_parts(self, sums: Accumulation, index_MB: Tensor, rate_M1: Tensor) -> Tensor:
        """Make the same update from micro-batches, one after another."""
        if self._gradients is None:
            self._gradients = self._prepared_gradients(index_MB)
        state, weights = self._state, self._state.weights
        sums.begin()
        for part in self._plan.micro_batches.parts:
            sums.load(part)
            losses_M, gradients, after, _ = self._gradients(
                weights.values,
                self._bfloat16_copies,
                list(state.fixed_M.values()),
                sums.buffers,
                *self._feed.batch(index_MB, part),
                self._feed.key_M,
                self._step,
                sums.start,
            )
            sums.add(part, losses_M, gradients, after)
        weights.apply(
            weights.values,
            weights.moments,
            sums.gradients,
            rate_M1,
            state.num_clipped_M1,
            state.settings,
            step=self._step,
        )
        sums.finish()
        self.renew_bfloat16_copies()
        return sums.losses_M

    def _update_in_place(self) -> None:
        """Make the update that the counters point to and advance them: the same operations every time."""
        losses_M = self._make_update(*self._feed.row_at(self._offset))
        self._losses_KM.index_copy_(0, self._offset, losses_M.to(self._losses_KM.dtype).unsqueeze(0))
        self._counters += 1

    def _recorded(self, stream: torch.cuda.Stream) -> Recording:
        """Record an update; the calls before it also let cuDNN choose the fastest convolutions."""
        with arithmetic(self._plan.placed, tries_convolutions=True):
            recording = capture(
                self._update_in_place,
                keep=[*self._state.updated, self._losses_KM, self._counters],
                stream=stream,
                also_several=not self._feed.reads_ahead and self._sums is None,
            )
        self.renew_bfloat16_copies()  # the calls before the recording made and changed them
        return recording

    def renew_bfloat16_copies(self) -> None:
        """Round the parameters again, after they were changed by something other than an update."""
        if self._bfloat16_copies:
            assert self._program is not None
            for copy, value in zip(
                self._bfloat16_copies, self._program.bfloat16_copies(self._state.weights.values), strict=True
            ):
                copy.copy_(value)

    # -- programs ---------------------------------------------------------------------------------------------------

    def prepare(self, x_MB: Tensor, y_MB: Tensor) -> None:
        """Trace the training step for the present number of runs and make a program of it.

        Raises:
            NotVectorisable: convolutions are left that the kernels cannot compute.
        """
        plan, state, feed = self._plan, self._state, self._feed
        feed.bind(x_MB, y_MB)
        states, position = self.states, self.position
        names = state.weights, list(state.fixed_M), list(state.buffers_M)
        if plan.is_single and not self.is_asynchronous and self._model.is_recurrent:
            self._program = Program(call=self._model.plain_step_function(*names))
            return
        step_function = self._model.step_function(*names)
        step = torch.zeros_like(self._step)
        batch = range(len(states), len(states) + 2)  # made anew for every update, so a model may write into it
        traced = self._traced(step_function, (*states, x_MB, y_MB, feed.key_M, step, *position), scratch=batch)
        if (plan.convolves or plan.unfolds) and has_plain_convolutions(traced.graph):
            raise NotVectorisable("neither kernels nor matmuls support convolutions of images of this size")
        if writes(traced):
            self._program = Program(call=traced.forward)
        elif feed.bound_batch is None:
            self._program = gpu_program(
                traced, state.weights, reads_bfloat16=plan.reads_bfloat16, returns_factors=plan.returns_factors
            )
        else:
            fixed = PreallocatedProgram(traced, [*states, *feed.bound_batch, feed.key_M, self._step, *position])
            self._program = Program(call=lambda *_: fixed())

    def _traced(self, step_function: Call, arguments: Sequence[Tensor], *, scratch: range) -> fx.GraphModule:
        """Trace the training step, or take the trace of an earlier stack that would be the same."""
        plan, state = self._plan, self._state
        placed = plan.placed
        if placed.device.type != "cpu" or not plan.micro_batches.is_whole:
            with building.skipping(placed.device):
                return trace(step_function, *arguments, scratch=scratch)
        names = state.weights.names, tuple(state.weights.shapes.items()), tuple(state.fixed_M), tuple(state.buffers_M)
        shapes = tuple((values.shape, values.stride(), values.dtype) for values in arguments)
        key = self._model.attributes(), plan.is_single, placed.is_mixed, placed.unroll, names, shapes
        traced = placed.traces.take(key)
        if traced is None:
            traced = trace(step_function, *arguments, scratch=scratch)
            self._new_trace = key, copy_without_tensors(traced)
        return traced

    def keep_trace(self) -> None:
        """Let later stacks take the trace that was made here; only after a check that it passed without a warning."""
        if self._new_trace is not None:
            key, graph = self._new_trace
            if graph is not None:
                self._plan.placed.traces.keep(key, graph)
            self._new_trace = None

    @property
    def states(self) -> list[Tensor]:
        """What a step reads besides its batch: parameter groups, fixed parameters, buffers."""
        state = self._state
        buffers = list(state.buffers_M.values()) if self._sums is None else self._sums.buffers
        return [*state.weights.values, *state.fixed_M.values(), *buffers]

    @property
    def position(self) -> list[Tensor]:
        """The position of a micro-batch, which its step reads; of a whole batch, nothing."""
        return [] if self._sums is None else [self._sums.start]

    def gradients(self, x_MB: Tensor, y_MB: Tensor, *, step: int) -> tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]:
        """Return losses (M,), gradients of the parameter groups, and buffers after the forward pass; update nothing.

        Of a batch in micro-batches, it is the first of them.
        """
        if self._program is None:
            self.prepare(x_MB, y_MB)
        assert self._program is not None
        now = torch.full_like(self._step, step)
        if self._feed.bound_batch is not None:  # the program reads nothing else
            for own, new in zip((*self._feed.bound_batch, self._step), (x_MB, y_MB, now), strict=True):
                own.copy_(new)
        if self._sums is not None:
            self._sums.load(self._plan.micro_batches.parts[0])
        state = self._state
        buffers = list(state.buffers_M.values()) if self._sums is None else self._sums.buffers
        states = state.weights.values, list(state.fixed_M.values()), buffers
        return self._program.gradients(*states, x_MB, y_MB, self._feed.key_M, now, *self.position)

    def _prepared_update(self, index_MB: Tensor) -> Update:
        """Make the update for the present number of runs, or take that of another stack with the same shapes."""
        weights = self._state.weights
        self._program = self._made_program(index_MB)
        update = None if self._shared is None else self._shared._update
        if update is None:
            update = update_of(self._program, weights, is_compiled=self._is_compiled)
        self._bfloat16_copies = self._program.bfloat16_copies(weights.values)
        return update

    def _prepared_gradients(self, index_MB: Tensor) -> Gradients:
        """Do the same for the gradients of a micro-batch."""
        self._program = self._made_program(index_MB)
        found = None if self._shared is None else self._shared._gradients
        if found is None:
            found = gradients_of(self._program, is_compiled=self._is_compiled)
        self._bfloat16_copies = self._program.bfloat16_copies(self._state.weights.values)
        return found

    def _made_program(self, index_MB: Tensor) -> Program:
        if self._shared is not None:
            assert self._shared._program is not None
            return self._shared._program
        if self._program is None:
            part = None if self._sums is None else self._plan.micro_batches.parts[0]
            batch, index = self._feed.batch(index_MB, part)
            self.prepare(*(batch if index is None else (values[index] for values in batch)))
        assert self._program is not None
        return self._program

    @property
    def _is_compiled(self) -> bool:
        num_left, worth = self._plan.num_steps - self._state.num_done, self._plan.compiles_from
        return worth is not None and num_left >= worth
