"""`isotherm merge`: the stores of several parts into one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.command import command
from isotherm.cli.common import check_json, console_for, escaped, give_json
from isotherm.cli.options import JsonOption

if TYPE_CHECKING:
    from rich.console import Console

    from isotherm.running.merge import Merged
    from isotherm.sweep.results import StudyResults


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeOptions:
    """The options of `isotherm merge`."""

    stores: Annotated[list[Path], typer.Argument(metavar="STORE...", help="The stores to merge.")]
    into: Annotated[Path, typer.Option("--into", metavar="FILE", help="The store that they are added to.")]
    json_path: JsonOption = None


@command(MergeOptions)
def merge(options: MergeOptions) -> None:
    """Merge stores into one. Runs that two of them hold are compared, and different numbers are refused."""
    from isotherm.running.merge import merge_stores
    from isotherm.running.stored import stored_studies

    check_json(options.json_path)
    console = console_for(options.json_path)
    merged = merge_stores(options.stores, options.into)
    studies = stored_studies(options.into)
    _print(merged, studies, into=options.into, console=console)
    give_json(options.json_path, _content(merged, studies, into=options.into))


def _print(merged: list[Merged], studies: list[StudyResults], *, into: Path, console: Console) -> None:
    for one in merged:
        replaced = f", {one.num_replaced} that had failed elsewhere" if one.num_replaced else ""
        line = f"{one.path}: {one.num_new} new runs, {one.num_same} known ones{replaced}"
        console.print(escaped(line), highlight=False, soft_wrap=True)
    console.print(f"Written to {escaped(str(into))}", highlight=False, soft_wrap=True)
    for results in studies:
        left = results.next_round()
        what = "complete" if left is None else f"{len(left.specs)} runs of {left} are missing"
        console.print(f"Study {escaped(results.plan.name)}: {what}.", highlight=False, soft_wrap=True)
    if any(results.next_round() is not None for results in studies):
        console.print(f"Run the parts again with --known {escaped(str(into))}.", highlight=False, soft_wrap=True)


def _content(merged: list[Merged], studies: list[StudyResults], *, into: Path) -> dict[str, object]:
    rows = [{"store": m.path, "new": m.num_new, "same": m.num_same, "replaced": m.num_replaced} for m in merged]
    lefts = {results.plan.name: results.next_round() for results in studies}
    missing = {name: 0 if left is None else len(left.specs) for name, left in lefts.items()}
    return {"store": str(into), "merged": rows, "missing": missing}
