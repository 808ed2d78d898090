"""`isotherm reproduce` and `isotherm report --paper`."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
import sys
from pathlib import Path

import pytest

from helpers_cli import invoke
from helpers_deadline import ends_after
from isotherm.cli import training
from isotherm.running.store import Store
from isotherm.studies.paper import shipped
from isotherm.studies.paper.definition import Scale
from isotherm.studies.paper.registry import objects

pytestmark = pytest.mark.usefixtures("study_folder")
ROOT = Path(__file__).parent.parent.parent
SMOKE = ["reproduce", "table1", "--scale", "smoke", "--workers", "1"]


def test_list_names_all_objects_with_cost_and_rows() -> None:
    code, text = invoke("reproduce", "list", "--results", str(ROOT / "results"), "--json", "list.json")
    assert code == 0
    assert "table7.json" in text
    assert "24 of 75 runs (with 5 seeds instead of 7" in " ".join(text.split())
    content = {entry["id"]: entry for entry in json.loads(Path("list.json").read_text())["objects"]}
    assert len(content) == 18
    assert content["table7"]["run"][0]["scale"] == "paper"
    assert content["figure1"]["scales"]["gpu"]["num_runs"] == 192
    lines = " ".join(text.split())
    assert "single cell at full length, not a sweep: B = 1,024 at ε_eff = 8, 3 runs; " in lines
    cells = {name: [cell["batch_size"] for cell in entry["single_cells"]] for name, entry in content.items()}
    assert {name: sizes for name, sizes in cells.items() if sizes} == {
        "table1": [256, 1024],
        "table3": [64],
        "table6": [16, 64],
        "table7": [64],
    }
    assert content["table3"]["single_cells"][0] == {
        "batch_size": 64,
        "effective_learning_rate": 0.25,
        "num_runs": 3,
        "rows": str(ROOT / "results" / "calibration" / "skipinit_b64.json"),
    }


def test_an_object_is_run_shown_and_put_on_the_page_of_the_paper() -> None:
    code, text = invoke(*SMOKE, "--json", "table1.json")
    assert code == 0
    assert "published" in text
    assert "not determined" in text
    content = json.loads(Path("table1.json").read_text())
    assert len(content["verdicts"]) == len(objects()["table1"].claims)
    assert "27 of 27 runs" in content["caption"]
    assert {p.suffix for p in Path("table1_smoke").iterdir()} == {".png", ".pdf", ".csv", ".json"}
    code, text = invoke("report", "--paper", "--json", "paper.json")
    assert code == 0
    page = Path("paper/report.html").read_text()
    assert page.count("<h2>") == 20  # contents, 18 objects, versions
    assert "Not run." in page
    assert "27 of 27 runs" in page
    assert [entry["object"] for entry in json.loads(Path("paper.json").read_text())["objects"]] == ["table1", "figure4"]
    code, text = invoke("report", "--paper", "--scale", "laptop")
    assert code == 0
    assert "table1" not in text
    assert "isotherm reproduce table1 --scale laptop" in Path("paper/report.html").read_text()
    code, text = invoke("report", "--paper", "--scale", "smoke")
    assert "table1: smoke: 27 of 27 runs" in " ".join(text.split())


def test_seeds_of_an_object_are_changed_as_those_of_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 1 keeps the best 12 of 15 in the paper; here its smoke runs keep 2 of 3."""
    found: list[tuple[int, int | None]] = []
    smoke = objects()["table1"].scales[Scale.SMOKE]
    two = [dataclasses.replace(setting, num_kept=2) for setting in smoke.settings]
    monkeypatch.setitem(objects()["table1"].scales, Scale.SMOKE, dataclasses.replace(smoke, settings=tuple(two)))
    monkeypatch.setattr(
        "isotherm.cli.training.train_study",
        lambda study, *_, **__: found.extend((s.num_seeds, s.num_kept) for s in study.sweeps) or sys.exit(0),
    )
    for seeds, expected in (("3", (3, 2)), ("7", (7, None))):
        found.clear()
        _, text = invoke(*SMOKE, "--seeds", seeds)
        assert set(found) == {expected}
        is_told = "--seeds 7 keeps all 7 seeds where the study keeps the best 2 of 3" in " ".join(text.split())
        assert is_told == (seeds == "7")


def test_all_runs_what_can_be_run_and_says_what_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name: objects()[name] for name in ("figure4", "table1", "table2")}
    monkeypatch.setattr("isotherm.studies.paper.registry.objects", lambda: known)
    code, text = invoke("reproduce", "all", "--scale", "paper", "--device", "cpu", "--data", ".", "--json", "all.json")
    assert code == 2
    assert "Table 1 at scale paper" in " ".join(text.split())
    assert "Table 2 at scale paper" in " ".join(text.split())
    assert [entry["object"] for entry in json.loads(Path("all.json").read_text())["objects"]] == ["figure4"]
    assert Path("all_paper/figure4/figure4.png").exists()


def test_one_object_out_of_time_says_what_is_left_and_goes_on() -> None:
    with pytest.MonkeyPatch.context() as limited:
        ends_after(limited, 2)
        code, text = invoke(*SMOKE, "--minutes", "1", "--json", "left.json")
    assert code == 4, text
    assert "Time is up. Left of base grids" in " ".join(text.split())
    content = json.loads(Path("left.json").read_text())
    assert content["complete"] is False
    assert 0 < content["left"]["runs"] < 27 or content["left"]["runs_begun"]
    assert invoke(*SMOKE, "--minutes", "10")[0] == 0


def test_all_out_of_time_lists_what_is_left_and_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stops the second object while it trains, and the third before."""
    known = {name: objects()[name] for name in ("figure4", "table1", "figure2", "table3")}
    monkeypatch.setattr("isotherm.studies.paper.registry.objects", lambda: known)
    words = ["reproduce", "all", "--scale", "smoke", "--workers", "1", "--minutes", "10", "--json", "all.json"]
    with pytest.MonkeyPatch.context() as limited:
        ends_when_runs_are_stored(limited, 27)
        code, text = invoke(*words)
    assert code == 4, text
    text = " ".join(text.split())
    assert "Time is up. Not reached: figure2, table3." in text
    assert "refused" not in text
    content = json.loads(Path("all.json").read_text())
    assert [entry["object"] for entry in content["objects"]] == ["figure4", "table1"]
    assert (content["complete"], content["left"]) == (False, {"figure2": None, "table3": None})
    code, _ = invoke(*words)
    assert code == 0
    assert json.loads(Path("all.json").read_text())["complete"] is True


def test_all_with_too_little_time_for_anything_is_an_error() -> None:
    code, text = invoke("reproduce", "all", "--scale", "smoke", "--workers", "1", "--minutes", "1e-9")
    assert code == 2
    assert "--minutes 1e-09 is over before anything could be trained" in " ".join(text.split())


def ends_when_runs_are_stored(monkeypatch: pytest.MonkeyPatch, num: int) -> None:
    """Let the minutes of a command be over once its store holds so many runs."""

    def minutes_left(minutes: float | None, *, since: float) -> float | None:
        path = Path("paper_smoke.sqlite")
        if path.exists():
            with Store.read(path) as store:
                since -= 3600.0 * (len(store.results()) >= num)
        return original(minutes, since=since)

    original = training.minutes_left
    monkeypatch.setattr(training, "minutes_left", minutes_left)


def test_exported_runs_are_rows_of_the_paper() -> None:
    assert invoke(*SMOKE)[0] == 0
    files = [Path("results/smoke/smoke.json"), Path("results/smoke/smoke.json.gz")]
    for file in files:
        wanted = ["--store", "paper_smoke.sqlite", "--output", str(file), "--commit", "abc1234"]
        code, text = invoke("reproduce", "export", *wanted)
        assert code == 0
        assert "27 runs of 1 studies" in " ".join(text.split())
    assert gzip.decompress(files[1].read_bytes()) == files[0].read_bytes()
    files[0].unlink()  # the packed one is read alone
    Path("paper_smoke.sqlite").unlink()
    code, text = invoke("report", "--paper", "--json", "paper.json")
    assert code == 0
    assert "table1: smoke: 27 of 27 runs" in " ".join(text.split())
    assert "commit abc1234" in json.loads(Path("paper.json").read_text())["objects"][0]["origin"]
    code, text = invoke("reproduce", "export")
    assert code == 2
    assert "export needs a store" in " ".join(text.split())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.json", b'{"runs": ['),
        ("rows.json", b"\xff"),
        ("rows.json.gz", b"no gzip"),
        ("rows.json.gz", gzip.compress(b'{"runs": []}')[:-9]),
        ("rows.json", b"[" * 100_000),
    ],
)
def test_earlier_rows_that_cannot_be_read_are_named(name: str, content: bytes) -> None:
    Path("results/table7").mkdir(parents=True)
    Path("results/table7", name).write_bytes(content)
    code, text = invoke("report", "--paper")
    assert code == 2
    assert f"results/table7/{name} is no intact JSON" in " ".join(text.split())


def test_earlier_rows_that_unpack_to_far_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "MOST_BYTES", 1000)
    Path("results/table7").mkdir(parents=True)
    Path("results/table7/rows.json.gz").write_bytes(gzip.compress(b" " * 1001))
    code, text = invoke("report", "--paper")
    assert code == 2
    assert "it has more than 1,000 bytes" in " ".join(text.split())


def test_rows_that_are_shipped_are_shown_without_running_anything() -> None:
    shutil.copytree(ROOT / "results" / "table7", "shipped/table7")  # all that are shipped take a minute
    code, text = invoke("report", "--paper", "--results", "shipped")
    assert code == 0
    assert "table7: paper:" in text
    page = Path("paper/report.html").read_text()
    assert "2.9410 ± 0.0081" in page
    assert "2.91 ± 0.01" in page


def test_the_schedule_needs_no_runs() -> None:
    code, text = invoke("reproduce", "figure4", "--scale", "paper")
    assert code == 0
    assert "9,765 of 9,765 learning rates are equal" in text
    assert Path("figure4_paper/figure4.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "tabel1"], "did you mean 'table1'"),
        (["reproduce", "table1", "--scale", "labtop"], "did you mean 'laptop'"),
        (["reproduce", "table1", "--scale", "gpu"], "PyTorch sees none here; use --scale laptop"),
        (["reproduce", "table1", "--scale", "smoke", "--device", "cuda"], "PyTorch sees no GPU here"),
        (["reproduce", "table1", "--scale", "gpu", "--device", "cpu", "--data", "."], "smoke and laptop need no data"),
        (["reproduce", "table1", "--scale", "smoke", "--resolution", "fine"], "resolution"),
        ([*SMOKE, "--minutes", "0"], "minutes"),
        (["report"], "no store is given"),
        (["report", "--scale", "laptop"], "add --paper"),
        (["report", "--paper", "--scale", "labtop"], "did you mean 'laptop'"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, text = invoke(*arguments)
    assert code == 2
    assert words in " ".join(text.split())


def test_a_store_of_another_study_is_refused() -> None:
    assert invoke("run", "mycode:sweep", "--workers", "1")[0] == 0
    code, text = invoke(*SMOKE, "--store", "tiny.sqlite")
    assert code == 2
    assert "holds the study 'tiny' and nothing of the paper" in " ".join(text.split())
    code, text = invoke("report", "--paper", "tiny.sqlite")
    assert code == 2
    assert "holds nothing of the paper" in " ".join(text.split())
