"""The figure of docs/schedules.md: the learning rate of every schedule over a training of 1,000 updates.

Run:     python benchmarks/schedules_figure.py
Cost:    a second
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt

from isotherm.core.multipliers import multipliers
from isotherm.core.schedule import Schedule
from isotherm.report.style import ordered_styles

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "schedules.png"
NUM_STEPS, WARMUP = 1_000, 0.05
SCHEDULES = {
    "paper": Schedule(warmup_fraction=WARMUP),
    "constant": Schedule.constant(warmup_fraction=WARMUP),
    "linear": Schedule.linear(final_fraction=0.1, warmup_fraction=WARMUP),
    "cosine": Schedule.cosine(final_fraction=0.1, warmup_fraction=WARMUP),
    "wsd": Schedule.wsd(decay_fraction=0.2, final_fraction=0.1, warmup_fraction=WARMUP),
    "a function": Schedule.of(lambda done: 0.1**done, warmup_fraction=WARMUP),
}


def values_of(schedule: Schedule) -> list[float]:
    """Return the multiplier of the learning rate at every update."""
    gamma, rest = schedule.of_run(num_steps=NUM_STEPS, initial=1.0)
    return multipliers(NUM_STEPS, gamma=gamma, schedule=rest).tolist()


def draw(path: Path) -> None:
    """Draw a panel for each schedule."""
    figure, axes = plt.subplots(2, 3, figsize=(9, 4.2), sharex=True, sharey=True, layout="constrained")
    colour = ordered_styles(2)[0].colour
    for one, (name, schedule) in zip(axes.flat, SCHEDULES.items(), strict=True):
        one.plot([k / NUM_STEPS for k in range(NUM_STEPS)], values_of(schedule), color=colour, linewidth=1.8)
        one.set_title(name, fontsize=10)
        one.set(xlim=(0, 1), ylim=(0, 1.05))
        one.grid(alpha=0.25)
        one.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("fraction of training done", fontsize=10)
    figure.supylabel("learning rate / peak learning rate", fontsize=10)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def main() -> None:
    """Write the figure."""
    draw(FIGURE)
    print(f"wrote {FIGURE.relative_to(FIGURE.parents[2])}")


if __name__ == "__main__":
    main()
