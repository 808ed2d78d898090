"""Missing kernels are noted instead of launched, built all at once by another process, and launched afterwards."""

from __future__ import annotations

import io
import logging
import os
import pickle
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from isotherm.kernels import build_server, building
from isotherm.kernels.build_server import Build

GPU = torch.device("cuda", 0)
ON_DISK = {("first", 99)}
TARGET = SimpleNamespace(backend="cuda", arch=90, warp_size=32)


class Kernel:
    """Launches as Triton's kernels do: what `_do_compile` returns is called, if it returns anything."""

    def __init__(self, name: str) -> None:
        self.fn = SimpleNamespace(__module__="kernels", __name__=name)
        self.device_caches = {0: ({}, {}, TARGET, None, None)}
        self.compiled: list[int] = []
        self.launched: list[int] = []

    def launch(self, size: int) -> None:
        cache = self.device_caches[0][0]
        if size not in cache:
            options = SimpleNamespace(num_warps=4)
            if self._do_compile(size, {"x": "*bf16"}, 0, {(1,): size}, options, {(0,): [["d", 16]]}, False) is None:
                return
        self.launched.append(size)

    def ASTSource(self, kernel, signature, constexprs, attrs):
        return SimpleNamespace(name=kernel.fn.__name__, size=constexprs[(1,)])

    def _do_compile(self, key, signature, device, constexprs, options, attrs, warmup):
        self.compiled.append(key)
        self.device_caches[device][0][key] = True
        return True


class StandIn:
    """A server that notes what it is asked for."""

    def __init__(self, error: str | None = None) -> None:
        self.asked: list[list[Build]] = []
        self.error = error

    def build(self, wanted: list[Build]) -> list[str | None]:
        self.asked.append(wanted)
        return [self.error] * len(wanted)


@pytest.fixture(autouse=True)
def triton(monkeypatch):
    monkeypatch.setattr(building, "_kernel_type", lambda: Kernel)
    monkeypatch.setattr(building, "are_available", lambda device: device.type == "cuda")
    monkeypatch.setattr(building, "num_cores", lambda: building.FEWEST_CORES)
    monkeypatch.setattr(building, "_is_on_disk", lambda source, backend, options: (source.name, source.size) in ON_DISK)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def server(monkeypatch):
    found = StandIn()
    monkeypatch.setattr(building, "_running", found)
    monkeypatch.setattr(building, "_server", lambda: found)
    return found


def test_missing_kernels_are_built_at_once_and_launched_afterwards(server, caplog):
    first, second = Kernel("first"), Kernel("second")
    first.launch(1)  # has been built

    def program() -> None:
        for kernel, size in ((first, 1), (first, 2), (second, 1), (second, 1), (first, 2)):
            kernel.launch(size)

    with caplog.at_level(logging.INFO, logger="isotherm"):
        building.built_first(program, GPU)
    assert [(build.name, build.constants) for build in server.asked[0]] == [("first", {(1,): 2}), ("second", {(1,): 1})]
    assert server.asked[0][0].target == ("cuda", 90, 32)
    assert server.asked[0][0].options == {"num_warps": 4}
    assert (first.compiled, second.compiled, first.launched) == ([1], [], [1, 1])
    assert caplog.messages[-1].startswith("2 kernels built at once")
    program()
    assert (first.launched, second.launched) == ([1, 1, 1, 2, 2], [1, 1])


def test_what_an_earlier_process_built_is_loaded_and_not_built_again(server):
    kernel = Kernel("first")
    building.built_first(lambda: kernel.launch(99), GPU)
    assert not server.asked
    assert (kernel.compiled, kernel.launched) == ([99], [99])
    other = Kernel("first")
    with building.skipping(GPU):
        other.launch(99)
    assert (other.compiled, other.launched) == ([], [])


def test_nothing_is_built_where_nothing_is_missing(server):
    building.built_first(lambda: None, GPU)
    assert not server.asked


def test_a_trace_builds_nothing_but_what_needs_values_in_it_is_launched(server):
    kernel = Kernel("first")
    with building.skipping(GPU):
        kernel.launch(1)
        with building.launching():
            kernel.launch(2)
            building.built_first(lambda: kernel.launch(3), GPU)
            kernel.launch(4)
        kernel.launch(5)
    assert kernel.launched == [2, 4]
    assert [[build.constants for build in asked] for asked in server.asked] == [[{(1,): 3}]]
    kernel.launch(1)
    assert kernel.launched == [2, 4, 1]


def test_backward_passes_launch_from_another_thread(server):
    kernel = Kernel("first")

    def program() -> None:
        thread = threading.Thread(target=kernel.launch, args=(7,))
        thread.start()
        thread.join()

    building.built_first(program, GPU)
    assert [build.constants for build in server.asked[0]] == [{(1,): 7}]
    assert not kernel.launched


def test_an_error_in_the_program_leaves_launches_as_they_were(server):
    def program() -> None:
        raise ValueError("of a user")

    with pytest.raises(ValueError, match="of a user"):
        building.built_first(program, GPU)
    kernel = Kernel("first")
    kernel.launch(1)
    assert kernel.launched == [1]


@pytest.mark.parametrize("what", ["a CPU", "few cores", "another Triton"])
def test_programs_are_not_called_where_nothing_is_gained(what, server, monkeypatch):
    device = torch.device("cpu") if what == "a CPU" else GPU
    if what == "few cores":
        monkeypatch.setattr(building, "num_cores", lambda: building.FEWEST_CORES - 1)
    if what == "another Triton":
        monkeypatch.setattr(building, "_kernel_type", lambda: None)
    building.built_first(lambda: pytest.fail("called"), device)
    kernel = Kernel("first")
    if what != "few cores":  # a trace needs no values anywhere
        with building.skipping(device):
            kernel.launch(1)
        assert kernel.launched == [1]


def test_a_few_kernels_do_not_start_a_process(monkeypatch):
    monkeypatch.setattr(building, "_running", None)
    monkeypatch.setattr(building, "_server", lambda: pytest.fail("started"))
    building.built_first(lambda: Kernel("first").launch(1), GPU)


def test_the_log_says_what_could_not_be_built(server, caplog):
    server.error = "CompilationError: no"
    with caplog.at_level(logging.INFO, logger="isotherm"):
        building.built_first(lambda: Kernel("first").launch(1), GPU)
    assert "first was not built ahead: CompilationError: no" in caplog.messages


def test_a_server_that_ends_is_said_once_and_not_started_again(monkeypatch, caplog):
    monkeypatch.setattr(building, "_running", None)
    monkeypatch.setattr(building, "_has_failed", False)
    monkeypatch.setattr(building, "_FEWEST_KERNELS", 1)
    monkeypatch.setattr(building.sys, "executable", "false")  # ends at once
    with caplog.at_level(logging.WARNING, logger="isotherm"):
        for size in (1, 2, 3):
            building.built_first(lambda size=size: Kernel("first").launch(size), GPU)
    assert 1 <= len(caplog.messages) <= 2
    assert all("built one after another" in message for message in caplog.messages)
    assert building._has_failed


def test_a_forked_process_leaves_the_server_alone(monkeypatch):
    monkeypatch.setattr(building, "_running", None)
    monkeypatch.setattr(building, "_has_failed", False)
    found = building._server()
    assert found is not None
    child = os.fork()
    if child == 0:
        found.end()
        os._exit(0 if building._running is found and not found.is_ours else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert found.is_alive
    found.end()
    assert not found.is_alive


def test_the_server_answers_in_the_order_of_the_kernels_and_ends_with_its_caller():
    asked = io.BytesIO(pickle.dumps([4, 0, 2]) + pickle.dumps([0]))
    answers = io.BytesIO()
    build_server.serve(asked, answers, _divide, num_processes=2)
    answers.seek(0)
    assert pickle.load(answers) == [None, "ZeroDivisionError: division by zero", None]
    assert pickle.load(answers) == ["ZeroDivisionError: division by zero"]


def _divide(number: int) -> float:
    return 1 / number


def test_the_process_that_builds_keeps_its_output_for_answers(tmp_path):
    (tmp_path / "talkative.py").write_text("print('not an answer')\n")
    wanted = Build(
        module="no_such_module",
        name="f",
        signature={},
        constants={},
        attributes={},
        options={},
        target=("cuda", 90, 32),
    )
    done = subprocess.run(
        [sys.executable, "-m", "isotherm.kernels.build_server", "2", "talkative", "no_such_module"],
        input=pickle.dumps([wanted, wanted]),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        check=True,
    )
    errors = pickle.loads(done.stdout)
    assert len(errors) == 2
    assert all("ModuleNotFoundError" in error for error in errors)
    assert b"not an answer" in done.stderr
