"""One update computed by several processes: each has its own parts of the batch, and all make the same step.

After every update all processes hold the same model. A process that fails cannot just leave: the others would wait for
it in the next sum. So all processes meet before they exchange anything, and once more at the end of a run. Whoever has
failed says so in the next meeting, and all leave the run there; only a process that dies or hangs is lost.
"""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from isotherm.core.launch import Launch
from isotherm.errors import UserError

# Bytes that are sent at once; a GPU needs so much free memory for them.
CHUNK = 2**26


class LostProcess(Exception):
    """Another process is gone or silent, and nothing can be exchanged any more; the message is PyTorch's."""


class FailedElsewhere(Exception):
    """Another process has failed in this run, and every process knows it; the message is its own."""


class Processes:
    """The processes that compute an update together, as one of them sees them; their group is PyTorch's own.

    Args:
        rank: of this one.
        num: of all.
        device: of the tensors that are exchanged.
    """

    _have_met = False  # in this process, which torchrun starts with the others for one call alone

    def __init__(self, *, rank: int, num: int, device: torch.device | str = "cpu") -> None:
        self.rank, self.num = rank, num
        self._device = torch.device(device)
        self._is_lost = False

    @classmethod
    def meeting(cls, launch: Launch, device: torch.device, *, seconds: float) -> Self:
        """Return the processes once all have met, where torchrun's variables say.

        Args:
            launch: what torchrun says of this one.
            device: of this one; on GPUs they speak by NCCL, otherwise by Gloo.
            seconds: a process that is silent for so long counts as lost.
        """
        if Processes._have_met and launch.num > 1:
            raise UserError(
                "torchrun's other processes have ended with the first call that used them; run all sweeps in one call, "
                "as isotherm.run_study(isotherm.Study(...)), or start torchrun once for each"
            )
        # Its functions have the group of all processes as a default argument, if there is one when it is first imported
        # (as `torch._dynamo` does). The group would outlive `leave` for good, and a thread of it that lets go of a
        # tensor while Python ends aborts the process ("terminate called without an active exception").
        importlib.import_module("torch.distributed.nn")
        try:
            _join(device, timeout=timedelta(seconds=seconds))
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"the {launch.num} processes that torchrun started cannot meet: {_first_line(error)}; start all with "
                "the same command, and on several machines with torchrun's --rdzv-endpoint"
            ) from error
        Processes._have_met = launch.num > 1
        return cls(rank=launch.rank, num=launch.num, device=device)

    def leave(self) -> None:
        """Leave the group of processes, whose threads end with it."""
        if dist.is_initialized() and not (self._is_lost and self._device.type == "cuda"):  # NCCL would wait in vain
            dist.destroy_process_group()

    def own(self, parts: Sequence[range]) -> tuple[range, ...]:
        """Return the parts of a batch that this process computes.

        >>> Processes(rank=1, num=2).own([range(0, 4), range(4, 8), range(8, 12)])
        (range(4, 8),)
        """
        return tuple(parts[self.rank :: self.num])

    # -- what is said -----------------------------------------------------------------------------------------------

    def meet(self, *, stops: bool = False) -> bool:
        """Wait for all processes; return whether one of them wants to stop after this update.

        Raises:
            FailedElsewhere: another one has failed in this run.
        """
        failed, is_over = self._flags(stops=stops)
        if failed:
            raise FailedElsewhere(self.sent(source=failed[0]).decode())
        return is_over

    def tell_failure(self, reason: str) -> str:
        """Let all processes leave the run in their next meeting; return the reason of the first that failed."""
        failed, _ = self._flags(failed=True)
        return self.sent(reason.encode(), source=failed[0]).decode()

    def sent(self, content: bytes = b"", *, source: int = 0) -> bytes:
        """Return what one of the processes sends to all; the others' `content` is ignored."""
        length = torch.tensor([len(content)], device=self._device)
        self._broadcast(length, source)
        received = bytearray(content) if self.rank == source else bytearray(int(length))
        view = torch.frombuffer(received, dtype=torch.uint8) if received else torch.empty(0, dtype=torch.uint8)
        for chunk in torch.split(view, CHUNK):
            on_device = chunk.to(self._device)
            self._broadcast(on_device, source)
            chunk.copy_(on_device)
        return bytes(received)

    def _flags(self, *, failed: bool = False, stops: bool = False) -> tuple[list[int], bool]:
        """Return which processes have failed, and whether one wants to stop."""
        flags = torch.zeros(self.num + 1, dtype=torch.int32)
        flags[self.rank], flags[-1] = failed, stops
        with self._exchange():
            flags = flags.to(self._device)
            dist.all_reduce(flags)
            *failures, num_stops = flags.tolist()
        return [rank for rank, flag in enumerate(failures) if flag], num_stops > 0

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        if tensor.numel():
            with self._exchange():
                dist.broadcast(tensor, src=source)

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """Turn what PyTorch raises when a process is gone into `LostProcess`."""
        try:
            yield
        except RuntimeError as error:
            self._is_lost = True
            traceback.clear_frames(error.__traceback__)  # they hold the group of processes, which `leave` ends
            raise LostProcess(_first_line(error)) from error

    # -- what is computed -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors, of equal shapes in all processes, by their sums over the processes.

        Raises:
            FailedElsewhere: in the meeting before.
        """
        self.meet()
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        for kind, alike in by_type.items():
            flat = torch.cat([tensor.flatten() for tensor in alike])
            flat = flat.to(torch.int32) if kind is torch.bool else flat
            with self._exchange():
                dist.all_reduce(flat)
            for tensor, total in zip(alike, torch.split(flat, [tensor.numel() for tensor in alike]), strict=True):
                tensor.copy_(total.reshape(tensor.shape))

    @torch.no_grad()
    def gather(self, whole: Tensor, dim: int, parts: Sequence[range]) -> None:
        """Replace a tensor by one that has every process's parts along a dimension."""
        own = torch.zeros_like(whole)
        for part in parts:
            own.narrow(dim, part.start, len(part)).copy_(whole.narrow(dim, part.start, len(part)))
        self.sum([own])
        whole.copy_(own)

    @torch.no_grad()
    def sum_update(self, model: nn.Module, loss: Tensor) -> Tensor:
        """Sum the gradients of a model's parameters over the processes; return the sum of the losses.

        A parameter that no process has a gradient of is left without one.
        """
        parameters = [p for p in model.parameters() if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32, device=loss.device)
        total = loss.clone()
        self.sum([total, *gradients, present])
        for parameter, gradient, num in zip(parameters, gradients, present.tolist(), strict=True):
            parameter.grad = gradient if num > 0 else None
        return total


def _join(device: torch.device, *, timeout: timedelta) -> None:
    """Make the group of all processes, at the address that torchrun has put into the environment."""
    store, rank, num = next(rendezvous("env://", timeout=timeout))
    # After a restart torchrun's store may still have the addresses of processes that are gone.
    attempt = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=num, timeout=timeout, **options)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
