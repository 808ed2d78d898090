"""Loss and metric over a split in evaluation mode, with the same means for one model and for a fleet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from isotherm.core.divergence import ends_far_above_start
from isotherm.core.records import CurvePoint, Outcome, RunResult
from isotherm.engine.placed_task import PlacedTask
from isotherm.engine.programs.cuda_graph import Recording, capture

Tensors = dict[str, Tensor]

# Examples of an evaluation batch; bounds the memory of a fleet's activations.
CHUNK = 500
# Images of all runs together that the convolution kernels evaluate at once.
MOST_IMAGES = 8_192
# Tokens of a sequence that are evaluated at once.
WINDOW = 35
# Examples over which ghost batch norm's statistics are re-estimated for evaluations along the way; the end uses all.
REESTIMATION_EXAMPLES = 4_096


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Loss and metric of one run over one split."""

    loss: float
    metric: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluator:
    """How one model or a fleet is evaluated; results have shape () or (runs,).

    Args:
        batch: inputs, targets -> loss and metric, each a mean over the batch; or loss and outputs, where the metric is
            one over the whole split.
        window: inputs, targets, state -> loss, metric, state; only for sequences.
        initial_state: of one stream; only for sequences.
        num_runs: how many runs are evaluated at once.
        chunk: examples of a batch.
    """

    batch: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    window: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]] | None = None
    initial_state: Tensor | None = None
    num_runs: int = 1
    chunk: int = CHUNK


def images_at_once(num_runs: int) -> int:
    """Return how many images each of `num_runs` runs evaluates at once in one program: a power of two.

    >>> [images_at_once(num) for num in (1, 24, 64)]
    [256, 256, 128]
    """
    return 1 << min(MOST_IMAGES // num_runs, CHUNK).bit_length() - 1


def evaluate_split(placed: PlacedTask, evaluator: Evaluator, split: str) -> list[Scores]:
    """Return the scores of every run over a whole split; one run gives a list of one."""
    num = len(placed.splits[split][1])
    with torch.no_grad():
        if placed.unroll is not None:
            losses, metrics = (_stream_sums(placed, evaluator, split) / num).cpu().tolist()
        elif placed.metric_is_over_split:
            losses, metrics = _scores_over_split(placed, evaluator, split)
        else:
            sums = sum(_sums(found, num_in) for found, num_in in _chunks(placed, evaluator, split))
            assert isinstance(sums, Tensor)
            losses, metrics = (sums / num).cpu().tolist()
    if placed.metric_is_exponential:
        metrics = [math.exp(value) if value < 700 else math.inf for value in metrics]  # NaN compares false
    return [Scores(loss=loss, metric=metric) for loss, metric in zip(losses, metrics, strict=True)]


def _chunks(placed: PlacedTask, evaluator: Evaluator, split: str) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """Yield what the evaluator returns for every batch of a split, and the batch's size."""
    num = len(placed.splits[split][1])
    for start in range(0, num, evaluator.chunk):
        x, y = placed.evaluation_batch(split, start, min(start + evaluator.chunk, num))
        yield evaluator.batch(x, y), len(y)


def _sums(means: tuple[Tensor, ...], num: int) -> Tensor:
    return torch.stack(means[:2]).reshape(2, -1).double() * num


def _scores_over_split(placed: PlacedTask, evaluator: Evaluator, split: str) -> tuple[list[float], list[float]]:
    """Return the losses of all runs, and a metric that is a function of all outputs: NaN where the loss is not finite.

    The function is called for one run at a time, so it may do what `vmap` cannot; and never with what a diverged
    run gives, which many functions refuse.
    """
    sums: Tensor | float = 0.0
    outputs_by_chunk: list[Tensor] = []
    for (loss, outputs), num in _chunks(placed, evaluator, split):
        sums = sums + loss.reshape(-1).double() * num
        outputs_by_chunk.append(outputs if loss.ndim else outputs.unsqueeze(0))
    assert isinstance(sums, Tensor)
    losses = (sums / len(placed.splits[split][1])).cpu().tolist()
    metrics = [
        float(
            placed.metric(torch.cat([outputs[run] for outputs in outputs_by_chunk]), placed.evaluation_targets(split))
        )
        if math.isfinite(loss)
        else math.nan
        for run, loss in enumerate(losses)
    ]
    if placed.metric is placed.loss:  # a loss that is no mean over examples either
        losses = [metric if math.isfinite(loss) else loss for loss, metric in zip(losses, metrics, strict=True)]
    return losses, metrics


def _stream_sums(placed: PlacedTask, evaluator: Evaluator, split: str) -> Tensor:
    """Read a sequence from its first token to its last, carrying the state along."""
    num = len(placed.splits[split][1])
    assert evaluator.window is not None
    assert evaluator.initial_state is not None
    step = _StreamStep(evaluator, placed.device)
    for start in range(0, num, WINDOW):
        step(*placed.evaluation_batch(split, start, min(start + WINDOW, num)))
    return step.sums


class _StreamStep:
    """Adds up one window after another; on a GPU a whole window is a CUDA graph, as launching kernels takes longer."""

    def __init__(self, evaluator: Evaluator, device: torch.device) -> None:
        assert evaluator.initial_state is not None
        self._evaluator = evaluator
        self._state = evaluator.initial_state.clone()
        self._x, self._y = (torch.zeros(WINDOW, dtype=torch.int64, device=device) for _ in range(2))
        self.sums = torch.zeros(2, evaluator.num_runs, dtype=torch.float64, device=device)
        self._recording: Recording | None = None
        if device.type == "cuda":
            self._recording = capture(lambda: self._add(self._x, self._y), keep=[self._state, self.sums])

    def __call__(self, x: Tensor, y: Tensor) -> None:
        """Evaluate the next window."""
        if self._recording is None or len(x) != WINDOW:
            self._add(x, y)
            return
        self._x.copy_(x)
        self._y.copy_(y)
        self._recording.play()

    def _add(self, x: Tensor, y: Tensor) -> None:
        assert self._evaluator.window is not None
        *means, state = self._evaluator.window(x.unsqueeze(0), y.unsqueeze(0), self._state)
        self._state.copy_(state)
        self.sums += _sums(tuple(means), len(x))


def evaluate_all(placed: PlacedTask, evaluator: Evaluator) -> dict[str, list[Scores]]:
    """Return the scores of every run over every split."""
    return {name: evaluate_split(placed, evaluator, name) for name in placed.splits}


def reestimated(
    placed: PlacedTask,
    buffers: Tensors,
    layers: Mapping[str, int],
    forward: Callable[[Tensors, Tensor, int], Tensors],
    *,
    num_examples: int,
    first_step: int,
    chunk: int = CHUNK,
) -> Tensors:
    """Return the buffers with ghost batch norm's statistics re-estimated at the present weights.

    They are the means over ghost batches of mean and variance, in training mode, over examples in a fixed random order.

    Args:
        placed: the task on a device.
        buffers: of the module or of the fleet.
        layers: the ghost batch norm layers and their ghost batch sizes.
        forward: buffers, examples, update -> buffers after a forward pass in training mode.
        num_examples: at most this many are used, in whole ghost batches.
        first_step: augmentation and dropout draw the random numbers of the updates from here on.
        chunk: examples of a forward pass, approximately.
    """
    if not layers:
        return buffers
    ghost = math.lcm(*layers.values())
    num = min(num_examples, placed.num_train)
    num = num // ghost * ghost or num  # fewer examples than a ghost batch are one of their own
    order = torch.randperm(placed.num_train, generator=torch.Generator().manual_seed(0))[:num].to(placed.device)
    rates = {f"{name}.update_rate" for name in layers}
    names = [f"{name}.{kind}" for name in layers for kind in ("running_mean", "running_var")]
    probing = {name: torch.ones_like(value) if name in rates else value for name, value in buffers.items()}
    sums = {name: torch.zeros_like(buffers[name]) for name in names}
    with torch.no_grad():
        for offset, index in enumerate(torch.split(order, max(1, chunk // ghost) * ghost)):
            after = forward(probing, index, first_step + offset)
            for name in names:
                sums[name] += after[name] * len(index)
    return {**buffers, **{name: total / num for name, total in sums.items()}}


def final_result(
    scores: Mapping[str, Scores],
    *,
    num_steps: int,
    loss_at_start: float,
    beats_constant: Callable[[float], bool],
    train_loss_running: float,
    last_batch_loss: float,
    l2_penalty: float,
    weight_norm_squared: float,
    curve: tuple[CurvePoint, ...],
    clipped_fraction: float | None = None,
    test_metric_running: float | None = None,
    loss_scale: float = 1.0,
) -> RunResult:
    """Return the record of a run that made all its updates.

    It has diverged if a final loss is not finite, or if the training loss is far above that of the untrained network;
    what is far depends on whether the training metric `beats_constant`, which is asked only where that matters.
    """
    if not all(math.isfinite(score.loss) for score in scores.values()):
        return diverged(num_steps, curve=curve)
    train = scores["train"]
    is_far = partial(ends_far_above_start, train.loss, loss_at_start=loss_at_start)
    if is_far(beats_constant=False) and is_far(beats_constant=beats_constant(train.metric)):
        return diverged(num_steps, curve=curve)
    validation = scores.get("validation")
    return RunResult(
        outcome=Outcome.FINISHED,
        train_loss_running=train_loss_running,
        last_batch_loss=last_batch_loss,
        train_loss=scores["train"].loss,
        train_metric=scores["train"].metric,
        l2_penalty=l2_penalty,
        weight_norm_squared=weight_norm_squared,
        validation_loss=None if validation is None else validation.loss,
        validation_metric=None if validation is None else validation.metric,
        test_loss=scores["test"].loss,
        test_metric=scores["test"].metric,
        test_metric_running=test_metric_running,
        clipped_fraction=clipped_fraction,
        loss_scale=loss_scale,
        curve=curve,
    )


def diverged(step: int, *, curve: tuple[CurvePoint, ...]) -> RunResult:
    """Return the record of a run whose loss was first not finite at update `step`, or that diverged by the end."""
    before = tuple(p for p in curve if p.step <= step and math.isfinite(p.test_loss))
    return RunResult(outcome=Outcome.DIVERGED, divergence_step=step, curve=before)
