"""What training changes: all that later updates and the results depend on besides the plan.

Shape suffixes: M runs, K updates of a window.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from isotherm.core.l2 import is_penalised
from isotherm.core.optimizers import Muon
from isotherm.core.records import CurvePoint
from isotherm.engine.checkpoint_file import State
from isotherm.engine.evaluation import Tensors
from isotherm.engine.parameters import ParameterGroups
from isotherm.engine.stack.plan import StackPlan
from isotherm.engine.update_rules import Settings, adaptive_settings, update_rule
from isotherm.tasks.matrices import muon_matrices


class StackState:
    """The tensors of the runs that are left, how far they have come, and the curves of all runs.

    Args:
        plan: what is trained.
        models: the initial module of every seed.
        unused: trainable parameters that the loss does not depend on. Optimisers leave them alone, and so does L2 here.
    """

    def __init__(self, plan: StackPlan, models: Sequence[nn.Module], *, unused: Collection[str]) -> None:
        stacked = _stacked(models, plan.seed_positions())
        named = dict(models[0].named_parameters())
        trainable = [name for name, p in named.items() if p.requires_grad]
        scope = plan.specs[0].l2_scope
        self.penalised = tuple(name for name in trainable if is_penalised(named[name], scope=scope))
        self.weights = ParameterGroups(
            {name: stacked[name] for name in trainable},
            decayed=set(self.penalised) - set(unused),
            channels_last=plan.channels_last or plan.convolves or plan.unfolds,
            pads_matrices=plan.reads_bfloat16,
            rule=update_rule(plan.method, is_mixed=plan.placed.is_mixed),
            orthogonal=muon_matrices(models[0]) if isinstance(plan.method, Muon) else (),
        )
        self.fixed_M = {name: stacked[name] for name, p in named.items() if not p.requires_grad}
        self.buffers_M = {name: stacked[name].clone() for name, _ in models[0].named_buffers()}
        self.settings = _settings(plan)
        self.num_done = 0  # updates
        self.curves: list[list[CurvePoint]] = [[] for _ in plan.specs]
        num, device = len(plan.specs), plan.placed.device
        self.num_clipped_M1 = torch.zeros(num, 1, dtype=torch.float64, device=device)
        self.running_M = torch.zeros(num, dtype=torch.float64, device=device)  # sum of the losses of the last epoch
        self.last_M = torch.zeros_like(self.running_M)  # loss of the last batch
        self._first_of_last_epoch = plan.num_steps - plan.running_window

    @property
    def num_runs(self) -> int:
        """How many runs are left."""
        return len(self.last_M)

    @property
    def updated(self) -> list[Tensor]:
        """The tensors that an update changes in place."""
        return [*self.weights.values, *self.weights.moments, *self.buffers_M.values(), self.num_clipped_M1]

    def note_losses(self, losses_KM: Tensor) -> None:
        """Count the updates that gave these losses."""
        size = len(losses_KM)
        num_in_last_epoch = max(0, self.num_done + size - self._first_of_last_epoch)
        self.running_M = self.running_M + losses_KM[size - min(size, num_in_last_epoch) :].sum(dim=0)
        self.last_M = losses_KM[-1].clone()
        self.num_done += size

    def select(self, keep: Tensor) -> None:
        """Keep only the runs at these positions."""
        for tensors in (self.fixed_M, self.buffers_M):
            for name, tensor in tensors.items():
                tensors[name] = tensor[keep]
        self.weights.select(keep)
        self.settings = self.settings.select(keep)
        self.num_clipped_M1, self.running_M, self.last_M = (values[keep] for values in self._counts)

    @property
    def _counts(self) -> list[Tensor]:
        return [self.num_clipped_M1, self.running_M, self.last_M]

    # -- a checkpoint's part ----------------------------------------------------------------------------------------

    def saved(self) -> State:
        """Return it as a checkpoint holds it."""
        return {
            "done": self.num_done,
            "curves": [[[p.step, p.test_loss, p.test_metric] for p in curve] for curve in self.curves],
            "values": list(self.weights.values),
            "moments": list(self.weights.moments),
            "buffers": dict(self.buffers_M),
            "counts": self._counts,
        }

    def has_layout_of(self, saved: State) -> bool:
        """Tell whether the parameters of a saved state are laid out as these are."""
        ours, theirs = ([value.shape[1:] for value in values] for values in (self.weights.values, saved["values"]))
        return ours == theirs

    def restore(self, saved: State) -> None:
        """Continue from a saved state of the same plan and the same runs."""
        self.num_done = saved["done"]
        self.curves = [
            [CurvePoint(step=step, test_loss=loss, test_metric=metric) for step, loss, metric in curve]
            for curve in saved["curves"]
        ]
        for ours, theirs in (
            (self.weights.values, saved["values"]),
            (self.weights.moments, saved["moments"]),
            (list(self.buffers_M.values()), [saved["buffers"][name] for name in self.buffers_M]),
            (self._counts, saved["counts"]),
        ):
            for old, new in zip(ours, theirs, strict=True):
                old.copy_(new)


def _settings(plan: StackPlan) -> Settings:
    def column(values: Sequence[float]) -> Tensor:
        exact = torch.tensor(values, dtype=torch.float64, device=plan.placed.device)
        return exact.to(plan.placed.dtype).unsqueeze(1)

    specs = plan.specs
    return Settings(
        momentum_M1=column([getattr(spec.method, "momentum", 0.0) for spec in specs]),
        l2_M1=column([spec.l2 for spec in specs]) if any(spec.l2 > 0 for spec in specs) else None,
        clip_M1=column([spec.clip_norm or math.inf for spec in specs]) if plan.clips else None,
        adaptive=adaptive_settings([spec.method for spec in specs], dtype=plan.placed.dtype, device=plan.placed.device),
    )


def _stacked(models: Sequence[nn.Module], seed_M: Tensor) -> Tensors:
    """Return the parameters and buffers of the runs' initial models by name, with the runs in front."""
    names = [name for name, _ in [*models[0].named_parameters(), *models[0].named_buffers()]]
    tensors = [dict([*m.named_parameters(), *m.named_buffers()]) for m in models]
    return {name: torch.stack([t[name].detach() for t in tensors])[seed_M] for name in names}
