"""What the methods say about fleets, from the provenance of the stored runs."""

from typing import Any

from isotherm.report.study.rounding import LARGEST_DIFFERENCE, rounding_paragraphs


def runs(*sizes: int, device: str = "cpu: x86_64", **facts: Any) -> list[dict[str, Any]]:
    return [{"device": device, "fleet_size": size, **facts} for size in sizes]


def test_runs_that_say_nothing_are_not_talked_about() -> None:
    assert rounding_paragraphs([]) == []
    assert rounding_paragraphs([{"isotherm": "0.1.0"}]) == []


def test_fleets_and_those_trained_alone_are_counted() -> None:
    [text] = rounding_paragraphs(runs(28, 28, 4, 1, num_threads=1))
    assert text.startswith("The 4 runs were trained in fleets of 4 to 28, with 1 thread; 1 run of them alone.")
    [text] = rounding_paragraphs(runs(7, 7))
    assert text.startswith("The 2 runs were trained in fleets of 7; no run was trained alone.")
    [text] = rounding_paragraphs([*runs(1, num_threads=1), *runs(1, num_threads=8)])
    assert text.startswith("The 2 runs were trained alone, not in a fleet, with 1 to 8 threads.")
    [text] = rounding_paragraphs(runs(1))
    assert text.startswith("The one run was trained alone, not in a fleet.")


def test_the_differences_are_those_measured() -> None:
    [text] = rounding_paragraphs(runs(28))
    assert "an MLP 0" in text
    assert f"{LARGEST_DIFFERENCE['convolutions']:.0e}" in text
    assert "GPU" not in text


def test_a_gpu_has_its_own_sentence() -> None:
    [text] = rounding_paragraphs(runs(64, device="cuda: NVIDIA H200"))
    assert "which kernels suit the fleet" in text
    assert "float32" not in text
