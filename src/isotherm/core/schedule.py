"""Schedules of the learning rate as a user gives them: a shape, a warm-up, and where they end.

A schedule is a function of the fraction of training that is done; `Schedule.of_run` turns it into the updates of one
run, and `multipliers` into numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from isotherm.core.checks import is_finite, is_number, is_whole
from isotherm.core.options import Given, Made, refuses_unknown, with_named_options
from isotherm.core.rates import tidy
from isotherm.core.run_schedule import NUM_DROPS, Point, RunSchedule, Shape, rounded
from isotherm.core.tabulation import checked_points, tabulated
from isotherm.errors import UserError, nearest

# Of the paper; also of runs that have no use for it.
_GAMMA = 2.0
# Part of training in which the "wsd" schedule falls.
WSD_DECAY = 0.2
# Which options a shape has besides its warm-up.
_OPTIONS: dict[Shape, tuple[str, ...]] = {
    "paper": ("gamma", "final_effective_learning_rate"),
    "constant": (),
    "linear": ("final_fraction", "final_effective_learning_rate"),
    "cosine": ("final_fraction", "final_effective_learning_rate"),
    "wsd": ("decay_fraction", "final_fraction", "final_effective_learning_rate"),
    "piecewise": ("points",),
}
SHAPES = tuple(_OPTIONS)
_WARMUPS = ("warmup_steps", "warmup_fraction")


def _owners(shape: str, option: str) -> str:
    """Return which shapes have an option that one of them has not."""
    owners = [f"{other!r}" for other, names in _OPTIONS.items() if option in names and other != shape]
    return f", which belongs to {' and '.join(owners)}" if owners else ""


def _shape_options(shape: str) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Return a decorator of the class method of a shape, which refuses the options of another."""
    return refuses_unknown(f"Schedule.{shape}", partial(_owners, shape))


@with_named_options(lambda _, option: _owners("", option))
@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """How the learning rate changes during training; by default the paper's: hold, then ten drops by γ = 2 each.

    Other shapes are made by the class methods `constant`, `linear`, `cosine`, `wsd`, `piecewise` and `of`. Every shape
    takes a linear warm-up.

    Args:
        gamma: factor of each of the ten drops of the paper's schedule.
        final_effective_learning_rate: where training ends, whatever learning rate it starts from.
        shape: "paper", "constant", "linear", "cosine", "wsd" or "piecewise".
        warmup_steps: updates of a linear warm-up, before the rest of the schedule.
        warmup_fraction: the same as a part of training.
        final_fraction: where training ends, as a part of the peak learning rate; by default 0.
        decay_fraction: part of training at its end in which "wsd" falls; by default 0.2.
        points: (fraction done, multiplier) of "piecewise", joined by straight lines.

    >>> Schedule().gamma_from(initial=1.0)
    2.0
    >>> Schedule.ending_at(0.5).gamma_from(initial=512.0)
    2.0
    >>> print(Schedule.cosine(warmup_fraction=0.05))
    linear warm-up over 5 % of training, then cosine decay to 0
    """

    gamma: float | None = _GAMMA
    final_effective_learning_rate: float | None = None
    shape: Shape = "paper"
    warmup_steps: int | None = None
    warmup_fraction: float | None = None
    final_fraction: float | None = None
    decay_fraction: float | None = None
    points: tuple[Point, ...] | None = None

    def __post_init__(self) -> None:
        if self.shape not in _OPTIONS:
            raise UserError(f"schedule {self.shape!r} is unknown; {nearest(str(self.shape), SHAPES)}")
        self._check_options()
        self._check_rates()
        self._check_fractions()
        if self.warmup_steps is not None and (not is_whole(self.warmup_steps) or self.warmup_steps < 0):
            raise UserError(
                f"warmup_steps={self.warmup_steps!r} is not a whole number of updates; give e.g. 500, or a part of "
                "training with warmup_fraction"
            )
        if self.shape == "piecewise":
            object.__setattr__(self, "points", checked_points(self.points or ()))

    def _check_options(self) -> None:
        """Refuse options of another shape, and two that say the same."""
        known = {*_OPTIONS[self.shape], *_WARMUPS, "shape"}
        wrong = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) is not None and f.name not in known]
        for name in wrong:
            if name == "gamma" and self.gamma == _GAMMA and len(wrong) > 1:
                continue  # by default: another option was given
            owners = ", ".join(shape for shape, names in _OPTIONS.items() if name in names)
            default = ", and there by default" if name == "gamma" and self.gamma == _GAMMA else ""
            raise UserError(
                f"{name}={getattr(self, name)!r} is no option of the schedule {self.shape!r}, but of {owners}{default}"
                f"; leave it out, or make the schedule with Schedule.{self.shape}(...)"
            )
        if self.shape == "paper" and (self.gamma is None) == (self.final_effective_learning_rate is None):
            raise UserError(
                f"a schedule needs gamma or final_effective_learning_rate and not both; got gamma={self.gamma}, "
                f"final_effective_learning_rate={self.final_effective_learning_rate}; drop one"
            )
        for one, other in (_WARMUPS, ("final_fraction", "final_effective_learning_rate")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise UserError(
                    f"{one}={getattr(self, one)!r} and {other}={getattr(self, other)!r} say the same; drop one"
                )

    def _check_rates(self) -> None:
        for name in ("gamma", "final_effective_learning_rate"):
            value = getattr(self, name)
            may_be_zero = self.shape != "paper"
            is_good = is_number(value) and is_finite(value) and (value > 0 or (may_be_zero and value == 0))
            if value is not None and not is_good:
                wanted = "a number >= 0; give e.g. 0" if may_be_zero else "a positive number; the paper uses gamma=2"
                raise UserError(f"{name}={value!r} is not {wanted}")

    def _check_fractions(self) -> None:
        for name in ("warmup_fraction", "decay_fraction", "final_fraction"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 <= value <= 1):
                what = "the peak learning rate" if name == "final_fraction" else "training"
                raise UserError(f"{name}={value!r} is not between 0 and 1; it is a part of {what}: give e.g. 0.1")
        if self.warmup_fraction == 1:
            raise UserError("warmup_fraction=1 is all of training; a warm-up of e.g. 0.05 leaves the rest for training")
        warmup, decay = self.warmup_fraction or 0.0, self.decay_fraction or 0.0
        if warmup + decay > 1 + 1e-12:
            raise UserError(
                f"warmup_fraction={warmup:g} and decay_fraction={decay:g} are more than all of training; lower one"
            )

    # -- the shapes ---------------------------------------------------------------------------------------------------

    @classmethod
    @_shape_options("ending_at")
    def ending_at(cls, final_effective_learning_rate: float) -> Schedule:
        """Return the paper's schedule whose last learning rate is given, whatever the first is (figure 3)."""
        return cls(gamma=None, final_effective_learning_rate=final_effective_learning_rate)

    @classmethod
    @_shape_options("constant")
    def constant(cls, *, warmup_steps: int | None = None, warmup_fraction: float | None = None) -> Schedule:
        """Return a constant learning rate."""
        return cls.named("constant", warmup_steps=warmup_steps, warmup_fraction=warmup_fraction)

    @classmethod
    @_shape_options("linear")
    def linear(
        cls,
        *,
        final_fraction: float | None = None,
        final_effective_learning_rate: float | None = None,
        warmup_steps: int | None = None,
        warmup_fraction: float | None = None,
    ) -> Schedule:
        """Return a learning rate that falls on a straight line, by default to 0."""
        return cls.named(
            "linear",
            final_fraction=final_fraction,
            final_effective_learning_rate=final_effective_learning_rate,
            warmup_steps=warmup_steps,
            warmup_fraction=warmup_fraction,
        )

    @classmethod
    @_shape_options("cosine")
    def cosine(
        cls,
        *,
        final_fraction: float | None = None,
        final_effective_learning_rate: float | None = None,
        warmup_steps: int | None = None,
        warmup_fraction: float | None = None,
    ) -> Schedule:
        """Return a learning rate that falls like half a cosine wave, by default to 0."""
        return cls.named(
            "cosine",
            final_fraction=final_fraction,
            final_effective_learning_rate=final_effective_learning_rate,
            warmup_steps=warmup_steps,
            warmup_fraction=warmup_fraction,
        )

    @classmethod
    @_shape_options("wsd")
    def wsd(
        cls,
        *,
        decay_fraction: float = WSD_DECAY,
        final_fraction: float | None = None,
        final_effective_learning_rate: float | None = None,
        warmup_steps: int | None = None,
        warmup_fraction: float | None = None,
    ) -> Schedule:
        """Return warm-up, stable, decay: constant, then on a straight line, by default to 0."""
        return cls.named(
            "wsd",
            decay_fraction=decay_fraction,
            final_fraction=final_fraction,
            final_effective_learning_rate=final_effective_learning_rate,
            warmup_steps=warmup_steps,
            warmup_fraction=warmup_fraction,
        )

    @classmethod
    @_shape_options("piecewise")
    def piecewise(
        cls,
        points: Sequence[Sequence[float]],
        *,
        warmup_steps: int | None = None,
        warmup_fraction: float | None = None,
    ) -> Schedule:
        """Return straight lines between (fraction done, multiplier); two points at one fraction are a jump.

        >>> str(Schedule.piecewise([(0, 1), (0.5, 1), (0.5, 0.1), (1, 0.1)]))
        'piecewise linear through 4 points, from 1 to 0.1'
        """
        made = checked_points(points)
        return cls.named("piecewise", points=made, warmup_steps=warmup_steps, warmup_fraction=warmup_fraction)

    @classmethod
    @_shape_options("of")
    def of(
        cls,
        function: Callable[[float], float],
        *,
        warmup_steps: int | None = None,
        warmup_fraction: float | None = None,
    ) -> Schedule:
        """Return a function of your own: the multiplier of the learning rate at a fraction done of the training.

        It is called now and kept as points, within 1e-5 of its largest value: what is trained, stored and hashed are
        these points, not the function. After a warm-up, its fractions count what is left of the training.

        >>> str(Schedule.of(lambda done: 1.0 if done < 0.8 else 0.1))
        'piecewise linear through 4 points, from 1 to 0.1'
        """
        return cls.piecewise(tabulated(function), warmup_steps=warmup_steps, warmup_fraction=warmup_fraction)

    @classmethod
    def named(cls, shape: str, **options: Any) -> Schedule:
        """Return the schedule of a shape; an option that is left out or None has its default."""
        given = {name: value for name, value in options.items() if value is not None}
        if shape == "paper":
            given.setdefault("gamma", None if "final_effective_learning_rate" in given else _GAMMA)
        elif shape == "wsd":
            given.setdefault("decay_fraction", WSD_DECAY)
        if unknown := sorted(given.keys() - {field.name for field in dataclasses.fields(cls)}):
            names = [*_OPTIONS.get(shape, ()), *_WARMUPS]  # type: ignore[call-overload]
            raise UserError(f"a schedule has no option {unknown[0]!r}; {nearest(unknown[0], names)}")
        return cls(**{"gamma": None, **given, "shape": shape})

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Schedule:
        """Return the schedule whose fields are given; the first stores knew only the paper's."""
        points = content.get("points")
        return cls(**{**content, "points": None if points is None else tuple(map(tuple, points))})

    # -- what it means for a run --------------------------------------------------------------------------------------

    @property
    def has_final_rate(self) -> bool:
        """Tell whether there is a learning rate at which it ends that can be set."""
        return "final_effective_learning_rate" in _OPTIONS[self.shape]

    @property
    def fixes_final_rate(self) -> bool:
        """Tell whether it says itself where it ends, other than by default."""
        return self.gamma not in (_GAMMA, None) or self._final != (None, None)

    @property
    def _final(self) -> tuple[float | None, float | None]:
        return self.final_fraction, self.final_effective_learning_rate

    def ending(self, final_effective_learning_rate: float) -> Schedule:
        """Return the same schedule with another end."""
        return dataclasses.replace(
            self, gamma=None, final_fraction=None, final_effective_learning_rate=final_effective_learning_rate
        )

    def gamma_from(self, initial: float) -> float:
        """Return γ of the paper's schedule for a run that starts at `initial`: given, or (ε_0 / ε_f)^(1/10)."""
        if self.shape != "paper":
            raise UserError(f"the schedule {self.shape!r} has no γ; this needs the paper's, Schedule(gamma=...)")
        if self.final_effective_learning_rate is None:
            assert self.gamma is not None
            return self.gamma
        return float((initial / self.final_effective_learning_rate) ** (1.0 / NUM_DROPS))

    def of_run(self, *, num_steps: int, initial: float) -> tuple[float, RunSchedule | None]:
        """Return γ and the rest of the schedule for a run with this many updates and this peak learning rate.

        The paper's schedule without a warm-up is γ alone, and a constant learning rate γ = 1. Other shapes have no γ.
        """
        self.check_length(num_steps)
        warmup = self._num_warmup(num_steps)
        if warmup == 0 and self.shape == "constant":
            return 1.0, None
        gamma = self.gamma_from(initial) if self.shape == "paper" else _GAMMA
        if warmup == 0 and self.shape == "paper":
            return gamma, None
        return gamma, RunSchedule(
            shape=self.shape,
            warmup_steps=warmup,
            decay_steps=self._num_decay(num_steps, warmup=warmup),
            final_fraction=self._final_fraction(initial),
            points=self.points,
        )

    def fits(self, num_steps: int) -> bool:
        """Tell whether the warm-up leaves room for the rest in a training of this many updates."""
        warmup, decay = self._num_warmup(num_steps), self._num_decay(num_steps, warmup=0) or 0
        return warmup < num_steps and (self.warmup_steps is None or warmup + decay <= num_steps)

    def check_length(self, num_steps: int) -> None:
        """Refuse a training in which the warm-up leaves no room for the rest."""
        if not self.fits(num_steps):
            warmup, decay = self._num_warmup(num_steps), self._num_decay(num_steps, warmup=0) or 0
            what = f"a warm-up of {warmup:,} updates"
            rest = f" and a decay of {decay:,}" if decay and warmup < num_steps else ""
            raise UserError(
                f"{what}{rest} does not fit into a training of {num_steps:,} updates; shorten the warm-up, or give it "
                "as a part of training, e.g. warmup_fraction=0.05"
            )

    def first_fall(self, num_steps: int) -> int | None:
        """Return the update at which a learning rate that was constant begins to fall; None where there is none."""
        warmup = self._num_warmup(num_steps)
        if self.shape == "paper":
            return warmup + (num_steps - warmup) // 2
        decay = self._num_decay(num_steps, warmup=warmup)
        return None if decay is None else num_steps - decay

    def refitted(self, num_steps: int) -> Schedule:
        """Return the schedule that, at any length, has the form which this one has at `num_steps` updates."""
        if self.warmup_steps is None:
            return self
        return dataclasses.replace(self, warmup_steps=None, warmup_fraction=self.warmup_steps / num_steps)

    def _num_warmup(self, num_steps: int) -> int:
        if self.warmup_steps is not None:
            return int(self.warmup_steps)
        return min(rounded((self.warmup_fraction or 0.0) * num_steps), num_steps - 1)

    def _num_decay(self, num_steps: int, *, warmup: int) -> int | None:
        if self.decay_fraction is None:
            return None
        return min(rounded(self.decay_fraction * num_steps), num_steps - warmup)

    def _final_fraction(self, initial: float) -> float | None:
        if self.shape == "paper" or not self.has_final_rate:
            return None
        if self.final_effective_learning_rate is not None:
            return tidy(self.final_effective_learning_rate / initial)  # equal to a part that is given
        return float(self.final_fraction or 0.0)

    # -- in words -----------------------------------------------------------------------------------------------------

    @property
    def warmup(self) -> str | None:
        """The length of the warm-up in words; None where there is none."""
        if self.warmup_steps:
            return f"{self.warmup_steps:,} updates"
        return f"{100 * self.warmup_fraction:g} % of training" if self.warmup_fraction else None

    def __str__(self) -> str:
        return self.words()

    def words(self, *, end: str | None = None) -> str:
        """Return the schedule in words; `end` says where it ends in other words than its own."""
        after = self._shape_words(end or self._end_words())
        return after if self.warmup is None else f"linear warm-up over {self.warmup}, then {after}"

    def _shape_words(self, end: str) -> str:
        if self.shape == "paper":
            fall = end if self.gamma is None else f"by a factor of {self.gamma:g} each"
            return f"constant for half of the updates, then ten drops {fall}"
        if self.shape == "piecewise":
            first, last = (self.points or ())[0], (self.points or ())[-1]
            return f"piecewise linear through {len(self.points or ())} points, from {first[1]:g} to {last[1]:g}"
        if self.shape == "wsd":
            return f"constant, with a linear decay {end} in the last {100 * (self.decay_fraction or 0):g} %"
        return "constant" if self.shape == "constant" else f"{self.shape} decay {end}"

    def _end_words(self) -> str:
        if self.final_effective_learning_rate is not None:
            return f"down to ε_eff = {self.final_effective_learning_rate:g}"
        return f"to {100 * self.final_fraction:g} % of the peak" if self.final_fraction else "to 0"


def checked_schedule(given: object) -> Schedule:
    """Return a schedule, also that of a name; refuse anything else."""
    if isinstance(given, str):
        return Schedule.named(given)
    if not isinstance(given, Schedule):
        remedy = "use isotherm.Schedule.of(function)" if callable(given) else 'give an isotherm.Schedule, or "cosine"'
        raise UserError(f"schedule={given!r} is {type(given).__name__}; {remedy}")
    return given
