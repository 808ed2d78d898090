"""The checkpoints of a run that several processes share: the first one keeps the file, and all go on from it."""

from __future__ import annotations

import io
import logging

import torch

from isotherm.engine.checkpoint import Checkpoint
from isotherm.engine.checkpoint_file import State
from isotherm.engine.data_parallel import Processes
from isotherm.engine.deadline import Deadline, Laps, OutOfTime
from isotherm.engine.run_state import RunState

logger = logging.getLogger("isotherm")


class SharedSaver:
    """A `RunSaver` of several processes, which end a run after the same update where one of them has no time left.

    Args:
        processes: that share the run.
        checkpoint: of the first one; None in the others, and where nothing is saved.
        deadline: of this process.
        device: to load tensors to.
    """

    def __init__(
        self, processes: Processes, *, checkpoint: Checkpoint | None, deadline: Deadline, device: torch.device
    ) -> None:
        self._processes, self._checkpoint, self._device = processes, checkpoint, device
        self._laps = Laps(deadline)

    def load(self) -> State | None:
        """Return the state that the first process has found and sent to all."""
        content = b"" if self._checkpoint is None else _encoded(self._checkpoint)
        self._processes.meet()
        received = self._processes.sent(content)
        if not received:
            return None
        if self._checkpoint is not None:
            logger.info("continuing from the checkpoint %s", self._checkpoint.path)
        state: State = torch.load(io.BytesIO(received), map_location=self._device, weights_only=True)
        return state

    def after_update(self, state: RunState) -> None:
        """Save the state if it is time to; all processes end together where one of them has to."""
        checkpoint = self._checkpoint
        reserved = 0.0 if checkpoint is None else checkpoint.longest_save
        is_last = self._processes.meet(stops=not self._laps.another_fits(reserved=reserved))
        if checkpoint is not None and (checkpoint.is_due() or is_last):
            checkpoint.save(state.saved())
        if is_last:
            raise OutOfTime(is_saved=checkpoint is not None and checkpoint.path.is_file())


def _encoded(checkpoint: Checkpoint) -> bytes:
    """Return the state of a checkpoint as it is sent, nothing where there is none."""
    state = checkpoint.load("cpu")
    if state is None:
        return b""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()
