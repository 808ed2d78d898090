"""What is left when the minutes of `--minutes` are up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from isotherm.cli.common import EXIT_OUT_OF_TIME, escaped, give_json
from isotherm.report.wording import count_text
from isotherm.running.executors.checkpoints import CheckpointFolder
from isotherm.running.parts import Part
from isotherm.sweep.rounds import Round


def exit_if_out_of_time(left: Round | None, *, store: Path, json_path: Path | None, console: Console) -> None:
    """End the command with its own exit code where runs are left; say how many."""
    if left is None:
        return
    saved = CheckpointFolder.beside(store, seconds=math.inf).saved_runs()
    num_begun = sum(spec.key in saved for spec in left.specs)
    sentence = left_sentence(left, num_begun=num_begun)
    console.print(f"\n[bold]Time is up.[/] {escaped(sentence)}", highlight=False, soft_wrap=True)
    where = escaped(str(store))
    console.print(f"Store: {where}. What there is so far: isotherm report {where}", highlight=False, soft_wrap=True)
    give_json(json_path, left_content(left, num_begun=num_begun))
    raise typer.Exit(EXIT_OUT_OF_TIME)


def exit_with_objects_left(left: Mapping[str, Round | None], *, store: Path, console: Console) -> None:
    """End a command that runs several objects where some are left; say of each how much, None if it was not reached."""
    if not left:
        return
    saved = CheckpointFolder.beside(store, seconds=math.inf).saved_runs()
    console.print("\n[bold]Time is up.[/]", highlight=False)
    for name, round_ in left.items():
        if round_ is not None:
            sentence = left_sentence(round_, num_begun=sum(spec.key in saved for spec in round_.specs))
            console.print(f"{name}: {escaped(sentence)}", highlight=False, soft_wrap=True)
    if untouched := [name for name, round_ in left.items() if round_ is None]:
        console.print(f"Not reached: {', '.join(untouched)}. The same command goes on from here.", soft_wrap=True)
    console.print(f"Store: {escaped(str(store))}", highlight=False, soft_wrap=True)
    raise typer.Exit(EXIT_OUT_OF_TIME)


def objects_left_content(left: Mapping[str, Round | None]) -> dict[str, Any]:
    """Return the same for JSON."""
    return {
        "complete": not left,
        "left": {name: None if found is None else len(found.specs) for name, found in left.items()},
    }


def print_part(part: str, left: Round | None, *, store: Path, console: Console) -> None:
    """Say what a part has left: its own runs for want of time, or those of other parts."""
    console.print(f"\n{escaped(part_sentence(part, left))}", highlight=False, soft_wrap=True)
    console.print(f"Store: {escaped(str(store))}", highlight=False, soft_wrap=True)


def part_sentence(part: str, left: Round | None) -> str:
    """Return where a part of a study stands, and what to do next."""
    if left is None:
        return f"Part {part}: nothing of the study is missing, in this part or any other."
    num_own = sum(Part.parse(part).has(spec.key) for spec in left.specs)
    if num_own:
        return f"Part {part}: {count_text(num_own, 'run')} of {left} are left. The same command goes on from here."
    others = count_text(len(left.specs), "run")
    return (
        f"Part {part} is done with {left}; {others} of it belong to other parts. When they are done too, merge all "
        "stores with isotherm merge, and run the parts again with --known and the merged store."
    )


def part_content(part: str, left: Round | None) -> dict[str, Any]:
    """Return the same for JSON."""
    num_own = 0 if left is None else sum(Part.parse(part).has(spec.key) for spec in left.specs)
    num_others = 0 if left is None else len(left.specs) - num_own
    return {"part": part, "complete": left is None, "runs_left": num_own, "runs_of_other_parts": num_others}


def left_sentence(left: Round, *, num_begun: int) -> str:
    """Say what is left, how many of these runs go on from a checkpoint, and how to go on."""
    begun = f", {num_begun:,} of which go on from a checkpoint" if num_begun else ""
    runs = count_text(len(left.specs), "run")
    return f"Left of {left}: {runs}{begun}, and what they call for. The same command goes on from here."


def left_content(left: Round, *, num_begun: int) -> dict[str, Any]:
    """Return the same for JSON."""
    return {
        "complete": False,
        "left": {
            "round": left.number,
            "stages": [str(stage) for stage in left.stages],
            "runs": len(left.specs),
            "runs_begun": num_begun,
        },
    }
