"""What becomes of fleets whose workers are lost: once more, then run by run, then failed."""

from __future__ import annotations

import dataclasses

from cases_paper import ANY_SPEC
from isotherm.core.records import RunSpec
from isotherm.running.executors.fleet_queue import LOST_ALONE, MOST_MACHINES, FleetQueue


def specs(num: int) -> list[RunSpec]:
    return [dataclasses.replace(ANY_SPEC, seed=seed) for seed in range(num)]


def seeds(queue: FleetQueue) -> list[list[int]]:
    return [[spec.seed for spec in queue.take().specs] for _ in range(len(queue))]


def test_fleets_are_handed_out_from_the_end() -> None:
    few, many = specs(2), specs(3)
    assert seeds(FleetQueue([few, many])) == [[0, 1, 2], [0, 1]]


def test_a_lost_fleet_is_next() -> None:
    queue = FleetQueue([specs(1), specs(3)])
    assert queue.lost(queue.take(), "killed") == []
    assert seeds(queue) == [[0, 1, 2], [0]]


def test_a_fleet_lost_twice_goes_on_run_by_run_in_order() -> None:
    queue = FleetQueue([specs(5)])
    for _ in range(2):
        assert queue.lost(queue.take(), "killed") == []
    assert seeds(queue) == [[0], [1], [2], [3], [4]]


def test_the_run_at_fault_is_found() -> None:
    queue = FleetQueue([specs(6)])
    for _ in range(2):
        queue.lost(queue.take(), "killed")
    failed = []
    while queue:
        job = queue.take()
        if job.specs[0].seed in (0, 1, 4, 5):
            failed += queue.lost(job, "killed")
        else:
            queue.done(job)
    assert [[spec.seed for spec in found.specs] for found in failed] == [[0], [1], [4], [5]]
    assert {found.reason for found in failed} == {"killed"}


def test_a_fleet_of_which_none_lives_is_given_up() -> None:
    queue = FleetQueue([specs(1), specs(20)])
    for _ in range(2):
        queue.lost(queue.take(), "exit code 7")
    failed = [queue.lost(queue.take(), "exit code 7") for _ in range(LOST_ALONE)]
    assert [len(found) for found in failed] == [1] * (LOST_ALONE - 1) + [2]
    rest = failed[-1][-1]
    assert [spec.seed for spec in rest.specs] == list(range(LOST_ALONE, 20))
    assert rest.reason == "exit code 7 (not tried alone: 3 other runs of its fleet were lost like this)"
    assert seeds(queue) == [[0]], "another fleet is none of its business"


def test_a_single_run_is_tried_twice() -> None:
    queue = FleetQueue([specs(1)])
    assert queue.lost(queue.take(), "killed") == []
    (found,) = queue.lost(queue.take(), "killed again")
    assert (len(found.specs), found.reason) == (1, "killed again")
    assert not queue


def test_a_machine_that_goes_away_is_no_fault_of_the_fleet() -> None:
    queue = FleetQueue([specs(2)])
    for _ in range(MOST_MACHINES):
        assert queue.lost(queue.take(), "preempted", is_machine=True) == []
    for _ in range(2):
        queue.lost(queue.take(), "preempted", is_machine=True)
    assert seeds(queue) == [[0], [1]]


def test_what_no_worker_has_begun_waits_again() -> None:
    queue = FleetQueue([specs(2)])
    queue.put_back(queue.take())
    assert seeds(queue) == [[0, 1]]
