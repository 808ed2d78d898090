"""The options that say how the learning rate changes during training, and the schedule they stand for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from isotherm.core.schedule import Schedule

PANEL = "Schedule of the learning rate"


def _option(name: str, *, text: str, metavar: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, rich_help_panel=PANEL)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleOptions:
    """The options of a schedule as given; without any of them it is the paper's."""

    schedule: Annotated[
        str | None,
        _option(
            "--schedule",
            metavar="NAME",
            text="Schedule: paper (hold, then ten drops), constant, linear, cosine or wsd; default: paper.",
        ),
    ] = None
    warmup_steps: Annotated[
        int | None, _option("--warmup-steps", metavar="N", text="Updates of a linear warm-up; default: none.")
    ] = None
    warmup_fraction: Annotated[
        float | None, _option("--warmup-fraction", metavar="PART", text="Warm-up as a part of training, e.g. 0.05.")
    ] = None
    decay_fraction: Annotated[
        float | None,
        _option("--decay-fraction", metavar="PART", text="Part of training in which wsd decays; default: 0.2."),
    ] = None
    final_fraction: Annotated[
        float | None,
        _option(
            "--final-fraction",
            metavar="PART",
            text="Where linear, cosine and wsd end, as a part of the peak learning rate; default: 0.",
        ),
    ] = None

    def given(self) -> list[str]:
        """Return the options that were given, as they are written."""
        names = [field.name for field in dataclasses.fields(self)]
        return ["--" + name.replace("_", "-") for name in names if getattr(self, name) is not None]

    def made(self) -> Schedule:
        """Return the schedule.

        Raises:
            UserError: there is none of this name, or the options do not suit it.
        """
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return Schedule.named(options.pop("schedule") or "paper", **options)
