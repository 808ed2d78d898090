"""The processes of a contender: what goes through their pipes, and what happens when one ends."""

from __future__ import annotations

import dataclasses
import multiprocessing
import threading
from typing import Any

import pytest

from helpers_bench import MLP
from isotherm.bench import contenders
from isotherm.bench.contenders import (
    COMPILED,
    JAX,
    LIBRARY,
    PLAIN,
    PROCESSES,
    Contender,
    ContenderError,
    chosen_peers,
    why_not,
)
from isotherm.errors import UserError


class DeadProcess:
    """A process that was killed."""

    exitcode = -9

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool:
        return False


def test_one_work_after_another_is_served_and_an_error_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders.signal, "signal", lambda *_: None)
    near, far = multiprocessing.Pipe()
    answers: list[tuple[str, Any]] = []

    def ask() -> None:
        broken = dataclasses.replace(MLP, task="nonsense")
        for message in (("workload", (broken, 0)), ("workload", (MLP, 0)), ("window", 0.01), ("window", 0.01)):
            near.send(message)
            answers.append(near.recv())
        near.send(("done", None))
        near.send(("done", None))  # of a workload that has ended already
        near.close()

    other_end = threading.Thread(target=ask)
    other_end.start()
    contenders._serve(far, PLAIN, 1)
    other_end.join()
    assert [kind for kind, _ in answers] == ["failed", "speed", "speed", "speed"]
    assert "unknown task 'nonsense'" in answers[0][1]
    assert answers[2][1] > 0


def test_a_process_that_has_ended_is_a_reason() -> None:
    contender = Contender(PLAIN)
    near, far = multiprocessing.Pipe()
    far.close()
    contender._processes = {near: DeadProcess()}  # type: ignore[dict-item]
    with pytest.raises(ContenderError, match="ended with exit code -9"):
        contender.open(MLP)
    assert not contender._processes


def test_speeds_of_several_processes_are_added_and_no_more_are_used_than_runs() -> None:
    contender = Contender(PROCESSES)
    pipes = [multiprocessing.Pipe() for _ in range(3)]
    contender._processes = {near: DeadProcess() for near, _ in pipes}  # type: ignore[misc]
    for speed in (0.0, 5.0):  # ready, then a window
        for _, far in pipes:
            far.send(("speed", speed))
    contender.open(dataclasses.replace(MLP, num_seeds=2, num_rates=1))
    assert contender.window(1.0) == 10.0
    assert pipes[0][1].recv()[0] == "workload"
    assert pipes[0][1].recv() == ("window", 1.0)
    assert not pipes[2][1].poll()
    contender.close()


def test_peers_by_name() -> None:
    assert chosen_peers([]) == list(contenders.PEERS)
    assert chosen_peers(["One_process-per core", "plain loop library layers"]) == [LIBRARY, PROCESSES]
    with pytest.raises(UserError, match="unknown contender 'jax'"):
        chosen_peers(["jax"])


def test_reasons_known_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "compiler", lambda: None)
    monkeypatch.setattr("isotherm.bench.jax_vmap.importlib.util.find_spec", lambda _: None)
    assert "C++ compiler" in str(why_not(COMPILED, MLP))
    assert why_not(JAX, MLP) == "jax is not installed"
    assert "already" in str(why_not(LIBRARY, MLP))
    assert why_not(PROCESSES, dataclasses.replace(MLP, num_seeds=1, num_rates=1)) == "there is one run only"
    assert why_not(PLAIN, MLP) is None


def test_a_compiler_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(contenders.shutil, "which", lambda name: f"/bin/{name}" if name == "clang++" else None)
    assert contenders.compiler() == "/bin/clang++"
