import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from isotherm.errors import UserError
from isotherm.tasks.seeding import DataOrder, StreamOrder, derive, initial_model, seeded

orders = st.fixed_dictionaries(
    {"seed": st.integers(0, 100), "num_train": st.integers(1, 30), "batch_size": st.integers(1, 40)}
)


def global_draws() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002


@given(st.integers(0, 2**70), st.text("abé", max_size=5))
def test_derive_gives_the_same_64_bits(seed, purpose):
    assert derive(seed, purpose) == derive(seed, purpose)
    assert 0 <= derive(seed, purpose) < 2**64


def test_seeds_and_purposes_share_nothing():
    purposes = ("initialisation", "noise", "data order")
    assert len({derive(seed, purpose) for seed in range(1000) for purpose in purposes}) == 3000


def test_seeded_gives_equal_draws_to_equal_seeds_only():
    draws = []
    for seed, purpose in ((0, "noise"), (0, "noise"), (1, "noise"), (0, "initialisation")):
        with seeded(seed, purpose):
            draws.append(global_draws())
    assert draws[0] == draws[1]
    assert all(len({draw[i] for draw in draws}) == 3 for i in range(3))


def test_seeded_puts_the_global_states_back():
    with seeded(5, "expected"):
        expected = global_draws()
    with seeded(5, "expected"):
        with seeded(0, "noise"):
            global_draws()
        assert global_draws() == expected


def draw_and_fail() -> None:
    with seeded(0, "noise"):
        global_draws()
        raise KeyError


def test_seeded_puts_the_global_states_back_after_an_error():
    with seeded(5, "expected"):
        expected = global_draws()
    with seeded(5, "expected"):
        with pytest.raises(KeyError):
            draw_and_fail()
        assert global_draws() == expected


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_initial_models_are_equal_for_equal_seeds_and_differ_for_different_ones():
    first, again, other = (weights(initial_model(lambda: nn.Linear(4, 4), seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()


def test_initial_model_does_not_depend_on_or_touch_the_global_generators():
    torch.manual_seed(1)
    first = weights(initial_model(lambda: nn.Linear(4, 4), seed=0))
    after_building = torch.rand(())
    torch.manual_seed(1)
    assert torch.equal(after_building, torch.rand(()))
    assert torch.equal(first, weights(initial_model(lambda: nn.Linear(4, 4), seed=0)))


def test_numpy_and_python_draws_of_a_builder_are_seeded_too():
    def build() -> nn.Module:
        module = nn.Linear(1, 2, bias=False)
        module.weight.data = torch.tensor([[np.random.rand()], [random.random()]])  # noqa: NPY002
        return module

    first, again, other = (weights(initial_model(build, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()


def test_a_builder_that_hands_out_one_module_couples_nothing():
    module = nn.Linear(2, 2)
    first, second = (initial_model(lambda: module, seed=seed) for seed in (0, 1))
    assert first is not second
    assert len({m.weight.data_ptr() for m in (module, first, second)}) == 3


def test_the_old_weight_norm_is_refused_with_the_name_of_the_new_one(recwarn):
    with pytest.raises(UserError) as refusal:
        initial_model(lambda: nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2))), seed=0)
    assert str(refusal.value).startswith("layer '0' (Linear) has torch.nn.utils.weight_norm")
    assert "torch.nn.utils.parametrizations.weight_norm" in str(refusal.value)
    with pytest.raises(UserError, match=r"^Linear has torch\.nn\.utils\.weight_norm"):
        initial_model(lambda: nn.utils.weight_norm(nn.Linear(2, 2)), seed=0)
    initial_model(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), seed=0)
    assert not recwarn.list  # PyTorch's own, that the function is deprecated


def test_a_builder_must_return_a_module():
    with pytest.raises(UserError, match=r"returned dict; end it with `return module`, a torch\.nn\.Module"):
        initial_model(dict, seed=0)  # type: ignore[arg-type]


@given(orders)
def test_every_epoch_is_a_permutation(order):
    num_train, batch_size = order["num_train"], order["batch_size"]
    examples = DataOrder(**order).block(0, 3 * num_train).flatten()[: 3 * batch_size * num_train]
    epochs = np.sort(examples.reshape(-1, num_train), axis=1)
    assert (epochs == np.arange(num_train)).all()


def test_batches_run_across_epoch_boundaries():
    # 5 examples in batches of 3: the second batch takes two of the first epoch and one of the second.
    batches = DataOrder(seed=0, num_train=5, batch_size=3).block(0, 5)
    assert sorted([*batches[0], *batches[1][:2]]) == [0, 1, 2, 3, 4]
    assert sorted([batches[1][2], *batches[2], batches[3][0]]) == [0, 1, 2, 3, 4]


@given(orders, st.integers(0, 9), st.integers(1, 9), st.integers(1, 9))
def test_any_block_is_a_piece_of_the_whole(order, start, first, second):
    whole = DataOrder(**order).block(0, start + first + second)
    pieces = DataOrder(**order)
    assert np.array_equal(pieces.block(start + first, second), whole[start + first :])
    assert np.array_equal(pieces.block(start, first), whole[start : start + first])


@given(orders)
def test_blocks_are_shaped_updates_by_batch(order):
    block = DataOrder(**order).block(3, 4)
    assert block.shape == (4, order["batch_size"])
    assert block.dtype == np.int64


def test_seeds_and_epochs_have_their_own_order():
    epochs = [
        tuple(epoch) for seed in range(5) for epoch in DataOrder(seed=seed, num_train=30, batch_size=30).block(0, 4)
    ]
    assert len(set(epochs)) == 20


def test_batch_sizes_of_one_seed_share_the_order():
    small, large = (DataOrder(seed=3, num_train=30, batch_size=b).block(0, 60 // b) for b in (5, 20))
    assert np.array_equal(small.flatten(), large.flatten())


class Interrupted(DataOrder):
    """Whatever it remembers, another thread has just asked for the first epoch."""

    @property
    def _cached(self):
        return 0, np.zeros(7, dtype=np.int64)

    @_cached.setter
    def _cached(self, value) -> None:
        pass


def test_an_order_may_be_asked_from_two_threads():
    """Batches are read ahead; the permutation of one thread's epoch must not end up in the other's batches."""
    sizes = {"seed": 0, "num_train": 7, "batch_size": 7}
    assert np.array_equal(Interrupted(**sizes).block(1, 5), DataOrder(**sizes).block(1, 5))


# -- streams of a sequence --------------------------------------------------------------------------------------

streams = st.fixed_dictionaries(
    {"num_tokens": st.integers(2, 300), "batch_size": st.integers(1, 20), "unroll": st.integers(1, 12)}
).filter(lambda sizes: sizes["num_tokens"] // sizes["batch_size"] > sizes["unroll"])


@given(streams)
def test_a_pass_reads_every_whole_window_of_every_stream_in_order(sizes):
    order = StreamOrder(**sizes)
    length = sizes["num_tokens"] // sizes["batch_size"]
    first = order.block(0, order.updates_per_pass)
    assert first.shape == (order.updates_per_pass, sizes["batch_size"], sizes["unroll"])
    assert first.dtype == np.int64
    for stream, positions in enumerate(np.moveaxis(first, 1, 0).reshape(sizes["batch_size"], -1)):
        begin = stream * length
        assert positions.tolist() == list(range(begin, begin + order.updates_per_pass * sizes["unroll"]))
        # Every token has one after it in its own stream, and no further window would.
        assert positions[-1] + 1 < begin + length
        assert positions[-1] + 1 + sizes["unroll"] >= begin + length


@given(streams, st.integers(0, 50), st.integers(1, 9))
def test_passes_repeat_and_any_block_is_a_piece_of_the_whole(sizes, start, num_steps):
    order = StreamOrder(**sizes)
    one_pass = order.block(0, order.updates_per_pass)
    block = order.block(start, num_steps)
    for offset in range(num_steps):
        assert np.array_equal(block[offset], one_pass[(start + offset) % order.updates_per_pass])


def test_streams_too_short_for_a_window_are_refused():
    with pytest.raises(
        UserError, match=r"20 tokens in 4 streams are too few for a window of 5 .* batch size of at most 3"
    ):
        StreamOrder(num_tokens=20, batch_size=4, unroll=5)
    assert StreamOrder(num_tokens=20, batch_size=3, unroll=5).updates_per_pass == 1


def test_seeding_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that started CUDA cannot fork workers, so seeding must leave it alone where nobody uses it."""
    seen: list[list[int]] = []
    fork_rng = torch.random.fork_rng

    def recording(devices=None):
        seen.append(list(devices))
        return fork_rng(devices=[])

    monkeypatch.setattr(torch.random, "fork_rng", recording)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with seeded(0, "test"):
        pass
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with seeded(0, "test"):
        pass
    assert seen == [[], [0, 1]]
