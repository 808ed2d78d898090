"""Results of `isotherm bench`."""

from __future__ import annotations

from isotherm.bench.workloads import WORKLOADS
from pages.results import NOT_MEASURED, Row, load
from pages.text import number, paragraph, percent, table


def bench_block(name: str) -> str:
    """Return ours, peers, target and floor of every workload on a machine; peers never timed are listed below."""
    content = load(name)
    if content is None:
        return NOT_MEASURED
    peers = [peer for peer in content["rows"][0]["peers"] if any(row["peers"].get(peer) for row in content["rows"])]
    header = ["workload", "B", "runs", "unit", "Isotherm", *peers, "ratio", "target", "met", "floor", "of the floor"]
    is_of_one_commit = "commit" in content
    header += [] if is_of_one_commit else ["commit"]
    rows = []
    for row in content["rows"]:
        target = row.get("target") or {}
        fraction = row["fraction_of_floor"]
        rows.append(
            (
                _name(row),
                "–" if row["batch_size"] is None else f"{row['batch_size']:,}",
                f"{row['num_runs']:,}",
                row["unit"],
                _with_range(row),
                *(number(row["peers"].get(peer)) for peer in peers),
                "–" if row["ratio"] is None else f"{row['ratio']:.1f}",
                target.get("text", "–"),
                {True: "yes", False: "**no**", None: "–"}[target.get("reached")],
                number(row["floor"]),
                "–" if fraction is None else percent(fraction),
                *(() if is_of_one_commit else (row["commit"],)),
            )
        )
    machine = content["machine"]
    where = ", ".join(str(machine[key]) for key in ("gpu", "cpu") if machine.get(key))
    remark = (
        f"{where}, {machine['cores']} cores, torch {machine['torch']}"
        f"{', commit ' + content['commit'] if is_of_one_commit else ''}. Median of the "
        f"windows, lowest and highest in brackets; ratio to the plain loop. {_untimed(content['rows'], peers)}"
    )
    extrapolated = [
        f"{row['workload']}: {row['remark']}." for row in content["rows"] if "extrapolated" in (row.get("remark") or "")
    ]
    told = " ".join([remark, *extrapolated, _targets(content), _missing(content)]).strip()
    block = f"{table(header, rows)}\n\n{paragraph(told)}"
    earlier = [_earlier(row) for row in sorted(content.get("earlier", ()), key=lambda row: _position(row, content))]
    if not earlier:
        return block
    return f"{block}\n\nEarlier:\n\n{table(('workload', 'Isotherm', 'peers', 'then', 'commit'), earlier)}"


def bench_row(label: str, *, commit: str | None = None) -> Row | None:
    """Return the row of a workload in the H200 benchmark, or the one of an earlier commit."""
    content = load("bench_h200") or {}
    rows = content.get("rows" if commit is None else "earlier", [])
    return next((row for row in rows if row["label"] == label and commit in (None, row["commit"])), None)


def _earlier(row: Row) -> tuple[str, ...]:
    """Return an earlier measurement, with its peers."""
    peers = ", ".join(f"{peer} {number(speed)}" for peer, speed in row["peers"].items() if speed)
    return row["label"], number(row["ours"]), peers, row["note"], row["commit"]


def _position(row: Row, content: Row) -> int:
    """Return the position of an earlier row's workload in the table."""
    return [present["label"] for present in content["rows"]].index(row["label"])


def _untimed(rows: list[Row], timed: list[str]) -> str:
    """Return the peers that have no number anywhere, and why, and why others have none in some rows."""
    reasons: dict[str, str] = {}
    for row in rows:
        for peer, why in (row.get("reasons") or {}).items():
            if peer not in timed:
                reasons.setdefault(peer, why)
    listed = "; ".join(f"{peer} ({why})" for peer, why in reasons.items())
    dashes = dict.fromkeys(why for row in rows for peer, why in (row.get("reasons") or {}).items() if peer in timed)
    parts = [f"Not timed: {listed}." if listed else "", f"Dashes: {'; '.join(dashes)}." if dashes else ""]
    return " ".join(part for part in parts if part)


def _targets(content: Row) -> str:
    """Return how many targets of the rows are met."""
    found = [row["target"]["reached"] for row in content["rows"] if row.get("target")]
    judged = [reached for reached in found if reached is not None]
    at = f" at commit {content['commit']}" if "commit" in content else ""
    return f"{sum(judged)} of the {len(judged)} targets in the table were met{at}." if judged else ""


def _missing(content: Row) -> str:
    """Return the workloads of this kind of machine that have no row."""
    device = "cuda" if content["machine"].get("gpu") else "cpu"
    measured = {row.get("label") for row in content["rows"]}
    missing = [one.label for one in WORKLOADS if one.device == device and one.label not in measured]
    return f"Not measured: {', '.join(missing)}." if missing else ""


def _name(row: Row) -> str:
    """Return the workload, with the precision where its label has one."""
    return ", ".join([row["workload"], *row.get("label", "").split(":")[2:]])


def _with_range(row: Row) -> str:
    if row["ours"] is None:
        return "–"
    return f"**{number(row['ours'])}** [{number(row.get('lowest'))}, {number(row.get('highest'))}]"
