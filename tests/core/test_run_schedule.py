"""The record of a run's schedule."""

from isotherm.core.run_schedule import RunSchedule
from isotherm.core.schedule import Schedule


def test_words_of_a_runs_schedule():
    schedules = [Schedule.wsd(warmup_steps=1000), Schedule.piecewise([(0, 1), (1, 0.5)])]
    made = [str(schedule.of_run(num_steps=5000, initial=1.0)[1]) for schedule in schedules]
    assert made == ["wsd, 1,000 updates of warm-up, 1,000 of decay, to 0 of the peak", "piecewise, 1 at 0, 0.5 at 1"]


def test_json_has_only_what_a_shape_uses():
    schedule = RunSchedule(shape="piecewise", warmup_steps=2, points=((0.0, 1.0), (1.0, 0.5)))
    assert schedule.to_json() == {"shape": "piecewise", "warmup_steps": 2, "points": ((0.0, 1.0), (1.0, 0.5))}
    assert RunSchedule.from_json({"shape": "piecewise", "warmup_steps": 2, "points": [[0, 1], [1, 0.5]]}) == schedule
    assert set(RunSchedule(shape="linear", final_fraction=0.1).to_json()) == {"shape", "warmup_steps", "final_fraction"}
