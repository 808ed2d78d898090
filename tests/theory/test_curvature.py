"""Spectra against full Hessians and closed forms; fixed seeds, float64 unless stated otherwise."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cases
import cases_paper
from helpers_hessian import (
    NETS,
    Centred,
    built,
    hessian_of,
    matrix_of,
    wells,
    written_out,
)
from isotherm.core.statistics import Floats, t_interval
from isotherm.errors import UserError
from isotherm.tasks.losses import cross_entropy, half_squared_error
from isotherm.tasks.seeding import initial_model
from isotherm.theory import curvature
from isotherm.theory.curvature import SharpnessProbe, largest_eigenpairs, sampled_sharpness, spectrum
from isotherm.theory.demonstration import Demonstration
from isotherm.theory.demos import curvature as piece
from isotherm.theory.hessian import Hessian, Mode, hessian_of_task

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # PyTorch's forward derivatives


# -- spectra against the full Hessian -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tanh", "ghost batch norm", "tied"])
def test_the_spectrum_is_that_of_the_full_hessian(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "DENSE_PARAMETERS", 0)  # so that the iteration is what is tested
    build, (x, y), mode = NETS[name]
    module = built(build)
    full = written_out(module, cross_entropy, x, y, mode=mode)
    values = np.linalg.eigvalsh(full)
    found = spectrum(Hessian(module, cross_entropy, inputs=x, targets=y, mode=mode), num_eigenvalues=4)
    np.testing.assert_allclose(found.largest.values, values[::-1][:4], rtol=1e-8)
    assert found.most_negative == pytest.approx(values[0], abs=1e-8 * values[-1])
    assert found.most_negative < 0
    for value, vector, residual in zip(
        found.largest.values, found.largest.vectors, found.largest.residuals, strict=True
    ):
        assert residual == pytest.approx(np.linalg.norm(full @ vector - value * vector), abs=1e-12)
        assert residual < 1e-5 * values[-1]
        assert np.linalg.norm(vector) == pytest.approx(1.0)
    assert (found.num_parameters, found.num_examples) == (len(full), len(x))
    assert found.num_products > 20


def test_a_small_hessian_is_written_out_and_gives_all_eigenvalues() -> None:
    build, (x, y), mode = NETS["frozen"]
    module = built(build)
    values = np.linalg.eigvalsh(written_out(module, cross_entropy, x, y, mode=mode))
    found = spectrum(Hessian(module, cross_entropy, inputs=x, targets=y, mode=mode), num_eigenvalues=len(values))
    np.testing.assert_allclose(found.largest.values, values[::-1], atol=1e-13)
    assert found.most_negative == pytest.approx(values[0])
    assert float(np.max(found.largest.residuals)) < 1e-13


# -- closed forms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [4, 60])
def test_both_ends_of_a_saddle(num: int) -> None:
    factors = [-2.0, 3.0, 5.0, *[0.5] * (num - 3)]
    found = spectrum(wells(factors), num_eigenvalues=2)
    np.testing.assert_allclose(found.largest.values, [5.0, 3.0], rtol=1e-6)
    assert found.most_negative == pytest.approx(-2.0, rel=1e-6)
    assert abs(found.largest.vectors[0][2]) == pytest.approx(1.0)
    assert found.sharpness == found.largest.values[0]


@pytest.mark.parametrize("value", [1.0, -1.0])
def test_a_multiple_of_the_identity(value: float) -> None:
    found = spectrum(wells([value] * 60), num_eigenvalues=3)
    np.testing.assert_allclose(found.largest.values, [value] * 3, rtol=1e-6)
    assert found.most_negative == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(found.largest.vectors @ found.largest.vectors.T, np.eye(3), atol=1e-8)


def test_the_smallest_eigenvalue_may_be_zero_below_a_large_one() -> None:
    found = spectrum(wells([100.0, *[1.0] * 50, *[0.0] * 50]), num_eigenvalues=1)
    assert found.sharpness == pytest.approx(100.0, rel=1e-6)
    assert abs(found.most_negative) < 1e-4


# -- the critical learning rate --------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_descent_is_stable_just_below_the_critical_learning_rate_only(momentum: float) -> None:
    hessian = wells([1.0, 4.0, 0.1])
    matrix = matrix_of(hessian)
    critical = spectrum(hessian, num_eigenvalues=1).critical_learning_rate(momentum=momentum)
    ends = []
    for factor in (0.99, 1.01):
        theta, velocity = np.ones(3), np.zeros(3)
        for _ in range(1000):
            velocity = momentum * velocity + matrix @ theta
            theta = theta - factor * critical * velocity
            if np.abs(theta).max() > 1e3:
                break
        ends.append(np.abs(theta[:2]).max())
    assert ends[0] < 1e-6
    assert ends[1] > 1e3


def test_critical_learning_rates_in_both_currencies() -> None:
    found = spectrum(wells([1.0, 4.0]), num_eigenvalues=1)
    assert found.critical_learning_rate() == pytest.approx(0.5)
    assert found.critical_learning_rate(momentum=0.9) == pytest.approx(2 * 1.9 / 4)
    assert found.critical_effective_learning_rate(momentum=0.9) == pytest.approx(38 / 4)
    flat = spectrum(wells([-1.0, -2.0]), num_eigenvalues=1)
    assert flat.critical_learning_rate() == math.inf
    assert flat.critical_effective_learning_rate(momentum=0.5) == math.inf


# -- single precision -----------------------------------------------------------------------------------------------


def test_single_precision_is_near_to_double() -> None:
    vector = np.random.default_rng(2).standard_normal(hessian_of("tanh").num_parameters)
    exact = hessian_of("tanh").product(vector)
    for size in (24, 7):
        single = hessian_of("tanh", precision="float32", examples_at_once=size).product(vector)
        assert 0 < np.abs(single - exact).max() < 1e-5 * np.abs(exact).max()
    found = spectrum(hessian_of("tanh", precision="float32"), num_eigenvalues=2)
    expected = spectrum(hessian_of("tanh"), num_eigenvalues=2)
    np.testing.assert_allclose(found.largest.values, expected.largest.values, rtol=1e-5)
    assert found.largest.residuals.max() < 1e-4


# -- what has no spectrum, or a level one ---------------------------------------------------------------------------


@pytest.mark.parametrize("num", [3, 60])
def test_outputs_that_never_change_have_a_hessian_of_zeros(num: int) -> None:
    found = spectrum(wells([0.0] * num), num_eigenvalues=2)
    assert found.largest.values.tolist() == [0.0, 0.0]
    assert found.largest.residuals.tolist() == [0.0, 0.0]
    assert found.most_negative == 0.0
    assert found.critical_learning_rate() == math.inf
    np.testing.assert_allclose(found.largest.vectors @ found.largest.vectors.T, np.eye(2), atol=1e-12)
    penalised = spectrum(wells([0.0] * num, l2=0.25, l2_scope="all"), num_eigenvalues=2)
    np.testing.assert_allclose(penalised.largest.values, [0.25, 0.25], rtol=1e-6)


def test_eigenvalues_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="a Hessian of 3 parameters does not have 4 eigenvalues; ask for 1 to 3"):
        largest_eigenpairs(wells([1.0, 2.0, 3.0]), num=4)
    with pytest.raises(UserError, match="0 eigenvalues"):
        spectrum(wells([1.0, 2.0, 3.0]), num_eigenvalues=0)
    with pytest.raises(ValueError, match="a vector of 2 numbers for 3 parameters"):
        wells([1.0, 2.0, 3.0]).product(np.ones(2))

    def never(*_: Any, **__: Any) -> None:
        raise curvature.ArpackNoConvergence("No convergence", np.zeros(0), np.zeros((0, 0)))

    monkeypatch.setattr(curvature, "eigsh", never)
    with pytest.raises(UserError, match="did not converge to a tolerance of 1e-06"):
        largest_eigenpairs(wells([1.0] * 60))


# -- a task ------------------------------------------------------------------------------------------------------------


def test_a_subset_is_fixed_by_its_seed() -> None:
    task = cases.blobs_task()
    module = initial_model(task.model, seed=0)

    def top(**changes: Any) -> float:
        return spectrum(hessian_of_task(task, module, mode="train", **changes), num_eigenvalues=1).sharpness

    assert top(num_examples=20) == top(num_examples=20)
    assert top(num_examples=20) != top(num_examples=20, subset_seed=1)
    assert top(num_examples=cases.NUM_TRAIN, subset_seed=1) == pytest.approx(top(), rel=1e-9)
    for bad in (0, cases.NUM_TRAIN + 1):
        with pytest.raises(UserError, match=f"num_examples={bad} of task 'blobs'; it has 64 to draw from"):
            top(num_examples=bad)


# -- a subset is a sample ----------------------------------------------------------------------------------------------


def gaussian_regression(num: int, deviations: Floats, *, seed: int) -> tuple[Hessian, Floats]:
    """Return a linear regression's Hessian, and its inputs; their covariance has λ_max = max(deviations)²."""
    x = np.random.default_rng(seed).standard_normal((num, len(deviations))) * deviations
    module = nn.Linear(len(deviations), 1, bias=False)
    hessian = Hessian(module, half_squared_error, inputs=torch.tensor(x), targets=torch.zeros(num, 1), mode="train")
    return hessian, x


def test_both_sides_of_the_bracket_by_hand() -> None:
    hessian, x = gaussian_regression(48, np.array([2.0, 1.5, 1.0, 1.0]), seed=0)
    found = sampled_sharpness(hessian, num_blocks=4, level=0.9)

    def top(rows: Floats) -> tuple[float, Floats]:
        values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
        return float(values[-1]), vectors[:, -1]

    blocks = x.reshape(4, 12, 4)
    whole, vector = top(x)
    apart = [top(np.concatenate([b for j, b in enumerate(blocks) if j != i]))[1] for i in range(4)]
    along = t_interval([float(np.mean((block @ vector) ** 2)) for block in blocks], level=0.9)
    held = t_interval([float(np.mean((b @ v) ** 2)) for b, v in zip(blocks, apart, strict=True)], level=0.9)
    assert (found.of_all, found.held_out) == pytest.approx((whole, held.estimate))
    assert (found.interval.low, found.interval.high) == pytest.approx((held.low, along.high))
    assert found.interval.estimate == pytest.approx((whole + held.estimate) / 2)


def test_the_interval_covers_where_small_samples_agree_on_a_wrong_value() -> None:
    """Here the largest eigenvalue is 17 % too large on average, and nearly all intervals at 95 % cover."""
    deviations = np.sqrt([2.0, 1.5, *[1.0] * 18])
    found = [sampled_sharpness(gaussian_regression(128, deviations, seed=s)[0], num_blocks=4) for s in range(15)]
    assert sum(one.interval.contains(2.0) for one in found) >= 14
    assert np.mean([one.interval.high - one.interval.low for one in found]) < 2.5
    too_large = np.mean([one.of_all for one in found]) - 2.0
    too_small = np.mean([one.held_out for one in found]) - 2.0
    assert 0.2 < too_large < 0.5
    assert -0.5 < too_small < -0.1
    assert abs(np.mean([one.interval.estimate for one in found]) - 2.0) < 0.15


def test_blocks_are_equal_and_of_whole_ghosts() -> None:
    found = sampled_sharpness(hessian_of("ghost batch norm"), num_blocks=3)
    assert found.of_all == pytest.approx(spectrum(hessian_of("ghost batch norm"), num_eigenvalues=1).sharpness)
    assert found.interval.low < found.held_out < found.of_all < found.interval.high
    for name, num_blocks in (("ghost batch norm", 2), ("batch norm", 2), ("tanh", 5), ("tanh", 1), ("tanh", 48)):
        with pytest.raises(UserError, match=f"cannot be cut into {num_blocks} equal"):
            sampled_sharpness(hessian_of(name), num_blocks=num_blocks)
    x, y = cases.blobs(24, seed=0)
    mixing = Hessian(nn.Sequential(nn.Linear(2, 3), Centred()), cross_entropy, inputs=x, targets=y, mode="train")
    with pytest.raises(UserError, match="a layer mixes them"):
        sampled_sharpness(mixing, num_blocks=2)


# -- the sharpness of a run --------------------------------------------------------------------------------------------


def test_the_probe_sees_what_the_full_hessian_has() -> None:
    x, y = cases.blobs(24, seed=0)
    module = built(cases.TiedNet)
    probe = SharpnessProbe(Hessian(module, cross_entropy, inputs=x, targets=y, mode="train"), every=10)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    expected = {}
    for step in range(31):
        record = probe(step, module.named_parameters())
        assert (record is None) == (step % 10 > 0)
        loss = cross_entropy(module(x.double()), y)
        if record is not None:
            full = written_out(module, cross_entropy, x, y, mode="train")
            expected[step] = float(loss.detach()), float(np.linalg.eigvalsh(full)[-1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert [record.step for record in probe.records] == [0, 10, 20, 30]
    for record in probe.records:
        assert (record.objective, record.sharpness) == pytest.approx(expected[record.step], rel=1e-4)
        assert record.residual < 1e-2 * record.sharpness


def test_another_direction_that_has_overtaken_is_noticed() -> None:
    """Parameters that do not meet in the loss are blocks of the Hessian; products never lead from one to the other."""
    factors = [8.0, *np.linspace(0.0, 5.0, 39), 9.0, *[1.0] * 22]
    near = np.r_[1.0, 0.01 * np.ones(39), np.zeros(23)]  # of the first block
    found = largest_eigenpairs(wells(factors), tolerance=1e-3, near=near)
    assert found.values[0] == pytest.approx(9.0, rel=1e-3)
    probe = SharpnessProbe(wells(factors, mode="eval"), every=1)
    for step, first in enumerate((10.0, 8.0)):
        probe(step, {"point": torch.ones(63)}, {"factors": torch.tensor([first, *factors[1:]])})
    assert [record.sharpness for record in probe.records] == pytest.approx([10.0, 9.0], rel=1e-3)


def test_going_on_takes_fewer_products() -> None:
    hessian = wells(list(np.linspace(0.0, 1.0, 200)))
    cold = largest_eigenpairs(hessian, tolerance=1e-3)
    num_cold = hessian.num_products
    largest_eigenpairs(hessian, tolerance=1e-3, near=cold.vectors[0])
    assert hessian.num_products - num_cold < num_cold


def test_a_run_that_diverges_is_recorded_to_the_end() -> None:
    x, y = cases.line(16, seed=0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).double()
    probe = SharpnessProbe(Hessian(module, half_squared_error, inputs=x, targets=y, mode="train"), every=1)
    optimizer = torch.optim.SGD(module.parameters(), lr=2.0)
    for step in range(12):
        probe(step, module.named_parameters())
        optimizer.zero_grad()
        half_squared_error(module(x), y).backward()
        optimizer.step()
    assert len(probe.records) == 12
    assert math.isfinite(probe.records[0].sharpness)
    assert math.isnan(probe.records[-1].sharpness)
    assert not math.isfinite(probe.records[-1].objective)


def test_an_infinite_hessian_on_the_way_is_recorded() -> None:
    module = nn.Linear(1, 1, bias=False)
    x, y = torch.ones(4, 1), torch.zeros(4, 1)
    nn.init.ones_(module.weight)
    hessian = Hessian(module, lambda o, t: o.abs().pow(1.5).mean(), inputs=x, targets=y, mode="train")
    probe = SharpnessProbe(hessian, every=1)
    for step, weight in enumerate((1.0, 0.0, 4.0)):
        probe(step, {"weight": torch.full((1, 1), weight)})
    assert [record.objective for record in probe.records] == [1.0, 0.0, 8.0]
    assert [record.sharpness for record in probe.records] == pytest.approx([0.75, math.nan, 0.375], nan_ok=True)


def test_a_probe_looks_every_so_many_updates() -> None:
    with pytest.raises(UserError, match="every must be a positive number of updates, not 0"):
        SharpnessProbe(wells([1.0]), every=0)


# -- the edge of stability, as demonstrated ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown() -> Demonstration:
    return piece.demonstrate(seed=0)


@pytest.mark.slow
def test_descent_sharpens_the_network_and_hovers_at_the_edge(shown: Demonstration) -> None:
    """λ_max starts far below 2(1 + m)/ε and ends at it, at two learning rates and with momentum."""
    curves = shown.panels[0].curves
    for (rate, momentum, _), found, edge in zip(piece._RUNS, curves[::2], curves[1::2], strict=True):
        limit = 2 * (1 + momentum) / rate
        assert edge.y == pytest.approx([limit, limit])
        assert edge.style == "dashed"
        assert found.y[0] < 0.4 * limit
        late = np.array(found.y[-len(found.y) // 4 :])
        assert late.mean() == pytest.approx(limit, rel=0.03)
        assert late.max() < 1.1 * limit
        assert late.min() > 0.9 * limit


@pytest.mark.slow
def test_descent_at_the_edge_raises_the_loss_now_and_then_and_lowers_it_in_all(shown: Demonstration) -> None:
    rows = [dict(zip(shown.tables[0].columns, row, strict=True)) for row in shown.tables[0].rows]
    for row in rows:
        num_rises, num_steps = map(int, str(row["loss rose"]).split(" of "))
        assert 0 < num_rises < num_steps / 2
        assert float(row["final loss"]) < 0.02


@pytest.mark.slow
def test_the_paragraph_says_what_the_tables_say(shown: Demonstration) -> None:
    for row in shown.tables[0].rows:
        rate, _, edge, start, late, ratio = map(float, row[:6])
        assert f"ε = {rate:g}" in shown.paragraph
        assert f"{late:.2f} over the last quarter, {ratio:.3f} of 2(1 + m)/ε = {edge:g}" in shown.paragraph
        assert f"starts at {start:.2f}" in shown.paragraph
        assert late / edge == pytest.approx(ratio)
    assert "3 of 3 runs end within 5 % of their edge" in shown.paragraph
    spectra = {row[0]: row for row in shown.tables[1].rows}
    values = [float(v) for v in spectra["start"][1:9]]
    assert values == sorted(values, reverse=True)
    assert shown.panels[1].curves[0].y == pytest.approx(values)
    assert all(float(row[-1]) < 1e-2 for row in spectra.values())
    json.dumps(shown.as_json(), allow_nan=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_gpu_gives_the_same(mode: Mode) -> None:
    task = cases_paper.ghost_task(l2=5e-4)
    module = initial_model(task.model, seed=0)
    found = [
        spectrum(hessian_of_task(task, module, mode=mode, device=device, precision=precision), num_eigenvalues=2)
        for device, precision in (("cpu", "float64"), ("cuda", "float64"), ("cuda", "float32"))
    ]
    np.testing.assert_allclose(found[1].largest.values, found[0].largest.values, rtol=1e-9)
    np.testing.assert_allclose(found[2].largest.values, found[0].largest.values, rtol=1e-4)
