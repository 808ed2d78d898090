"""Lines of PyTorch that train as a run was trained: its optimiser and its schedule, to paste into a training loop."""

from __future__ import annotations

from isotherm.core.optimizers import SGD, Adam, AdamW, Muon
from isotherm.core.rates import tidy
from isotherm.core.records import RunSpec
from isotherm.core.run_schedule import NUM_DROPS, RunSchedule

_SCHEDULERS = "torch.optim.lr_scheduler"
# More points than this are a function's, which only its author can write down.
_MOST_POINTS = 12


def torch_code(spec: RunSpec, *, unroll: int | None = None) -> tuple[str, ...]:
    """Return the lines that make the optimiser and the scheduler of a run.

    They expect `model`, and `torch`. The scheduler is stepped after every update. A schedule made of a function of the
    user's expects it as `function`.

    Args:
        spec: the run; its data order and initialisation are not among the lines.
        unroll: tokens of a window, for a language model.
    """
    made, is_one = _optimizer(spec), not isinstance(spec.method, Muon)
    scheduler = _scheduler(spec, is_one=is_one)
    constant = "" if scheduler else " at a constant learning rate"
    lines = [f"# batch size {spec.batch_size:,}, {spec.num_steps:,} updates{constant}", *made]
    if scheduler:
        both, written = "" if is_one else " of both", "".join(scheduler)
        needed = ["import math"] if "math." in written else ["import numpy"] if "numpy." in written else []
        lines = [*needed, *lines, *scheduler, f"# scheduler.step(){both} after every update"]
    if unroll is not None:
        lines.append(f"# the loss of an update: summed over the {unroll} tokens of a window, averaged over the streams")
    if spec.clip_norm is not None:
        step = "optimizer.step()" if is_one else "an update"
        lines.append(f"# before {step}: torch.nn.utils.clip_grad_norm_(model.parameters(), {spec.clip_norm!r})")
    return tuple(lines)


# -- the optimiser ----------------------------------------------------------------------------------------------------


def _optimizer(spec: RunSpec) -> list[str]:
    method, rate = spec.method, _text(spec.learning_rate)
    if isinstance(method, SGD):
        momentum = f", momentum={_text(method.momentum)}" if method.momentum else ""
        nesterov = ", nesterov=True" if method.nesterov else ""
        return _made("torch.optim.SGD", f"lr={rate}{momentum}{nesterov}", spec, decay=spec.l2)
    if isinstance(method, Adam):
        return _made("torch.optim.Adam", f"lr={rate}, {_moments(method)}", spec, decay=spec.l2)
    if isinstance(method, AdamW):
        return _made("torch.optim.AdamW", f"lr={rate}, {_moments(method)}", spec, decay=method.weight_decay)
    return _muon(method, spec)


def _made(kind: str, options: str, spec: RunSpec, *, decay: float) -> list[str]:
    """Return the lines of one optimiser; where only weights decay, they are a parameter group of their own."""
    none = ", weight_decay=0.0" if kind.endswith("AdamW") else ""
    if decay == 0:
        return [f"optimizer = {kind}(model.parameters(), {options}{none})"]
    if spec.l2_scope == "all":
        return [f"optimizer = {kind}(model.parameters(), {options}, weight_decay={_text(decay)})"]
    return [
        "weights = [p for p in model.parameters() if p.ndim > 1]",
        "others = [p for p in model.parameters() if p.ndim < 2]",
        f'groups = [{{"params": weights, "weight_decay": {_text(decay)}}}, {{"params": others, "weight_decay": 0.0}}]',
        f"optimizer = {kind}(groups, {options})",
    ]


def _moments(method: Adam | AdamW | Muon) -> str:
    return f"betas=({_text(method.beta1)}, {_text(method.beta2)}), eps={_text(method.epsilon)}"


def _muon(method: Muon, spec: RunSpec) -> list[str]:
    """Return the lines of Muon for matrices and AdamW for the rest."""
    decay, rate = _text(method.weight_decay), spec.learning_rate
    unpenalised = "[p for p in rest if p.ndim < 2]" if spec.l2_scope == "weights" else "[]"
    penalised = "[p for p in rest if p.ndim > 1]" if spec.l2_scope == "weights" else "rest"
    return [
        "tables = [m.weight for m in model.modules() if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag))]",
        "matrices = [p for p in model.parameters() if p.ndim == 2 and not any(p is table for table in tables)]",
        "rest = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]",
        f'groups = [{{"params": {penalised}, "weight_decay": {decay}}}, '
        f'{{"params": {unpenalised}, "weight_decay": 0.0}}]',
        f"muon = torch.optim.Muon(matrices, lr={_text(rate)}, momentum={_text(method.momentum)}, "
        f'nesterov={method.nesterov}, weight_decay={decay}, adjust_lr_fn="{method.adjustment}")',
        f"adamw = torch.optim.AdamW(groups, lr={_text(rate * method.adamw_ratio)}, {_moments(method)})",
        "optimizers = [muon, adamw]",
    ]


# -- the schedule -----------------------------------------------------------------------------------------------------


def _scheduler(spec: RunSpec, *, is_one: bool) -> list[str]:
    """Return the lines that make the scheduler, or one for each optimiser; none for a constant learning rate."""
    named = _named(spec) if is_one else None
    if named is not None:
        return [f"scheduler = {named}"]
    multiplier = _multiplier(spec)
    if multiplier is None:
        return []
    if is_one:
        return [f"scheduler = {_SCHEDULERS}.LambdaLR(", f"    optimizer, lambda step: {multiplier}", ")"]
    made = f"{_SCHEDULERS}.LambdaLR(one, lambda step: {multiplier})"
    return ["schedulers = [", f"    {made}", "    for one in optimizers", "]"]


def _named(spec: RunSpec) -> str | None:
    """Return PyTorch's own scheduler of this name, where there is one."""
    schedule, num_steps = spec.schedule, spec.num_steps
    if schedule is None or schedule.warmup_steps or schedule.final_fraction is None:
        return None
    final = schedule.final_fraction
    if schedule.shape == "cosine":
        lowest = f", eta_min={_text(final * spec.learning_rate)}" if final else ""
        return f"{_SCHEDULERS}.CosineAnnealingLR(optimizer, T_max={num_steps}{lowest})"
    if schedule.shape == "linear":
        ends = f"start_factor=1.0, end_factor={_text(final)}"
        return f"{_SCHEDULERS}.LinearLR(optimizer, {ends}, total_iters={num_steps})"
    return None


def _multiplier(spec: RunSpec) -> str | None:
    """Return what multiplies the learning rate, as a formula of `step`; None where it is 1 throughout."""
    schedule = spec.schedule or RunSchedule(shape="paper")
    warmup = schedule.warmup_steps
    body = _after_warmup(schedule, spec)
    if not warmup:
        return body
    start = _text(schedule.points[0][1]) if schedule.points and len(schedule.points) <= _MOST_POINTS else "1"
    start = "function(0.0)" if schedule.points and len(schedule.points) > _MOST_POINTS else start
    rise = f"(step + 1) / {warmup}" + ("" if start in ("1", "1.0") else f" * {start}")
    return f"{rise} if step < {warmup} else {body or '1.0'}"


def _after_warmup(schedule: RunSchedule, spec: RunSpec) -> str | None:
    warmup, num_steps = schedule.warmup_steps, spec.num_steps - schedule.warmup_steps
    step = f"(step - {warmup})" if warmup else "step"
    final = schedule.final_fraction or 0.0
    fall, end = _text(1.0 - final), "" if final == 0 else f"{_text(final)} + "
    factor = "" if final == 0 else f"{fall} * "
    if schedule.shape == "paper":
        hold, interval = warmup + num_steps // 2, max(1, num_steps // 20)
        drops = f"max(0, min({NUM_DROPS}, 1 + (step - {hold}) // {interval}))"
        return None if spec.gamma == 1 else f"{_text(spec.gamma)} ** -{drops}"
    if schedule.shape == "linear":
        return f"1 - {factor}{step} / {num_steps}"
    if schedule.shape == "cosine":
        return f"{end}{factor}(1 + math.cos(math.pi * {step} / {num_steps})) / 2"
    if schedule.shape == "wsd":
        length = schedule.decay_steps or 0
        return f"1 - {factor}max(0, step - {spec.num_steps - length}) / {max(length, 1)}"
    if schedule.shape == "piecewise":
        return _piecewise(schedule, f"{step} / {num_steps}")
    return None


def _piecewise(schedule: RunSchedule, done: str) -> str:
    points = schedule.points or ()
    if len(points) > _MOST_POINTS:
        return f"function({done})"
    x, y = ([_text(value) for value in values] for values in zip(*points, strict=True))
    return f"numpy.interp({done}, [{', '.join(x)}], [{', '.join(y)}])"


def _text(value: float) -> str:
    """Return a number that reads back as the same one, to 15 digits.

    >>> _text(0.1 * (1 - 0.9)), _text(1.0), _text(5e-4)
    ('0.01', '1.0', '0.0005')
    """
    return repr(tidy(value)) if value else "0.0"
