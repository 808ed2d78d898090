"""How close the heaviest kernels of the profiles come to copy speed."""

from __future__ import annotations

from itertools import pairwise

from isotherm.bench.ceilings import bytes_per_step
from isotherm.engine.graph.step_graph import aligned
from pages.performance.bench import bench_row
from pages.performance.kernels import moved_bytes
from pages.performance.profiles import AE, AE_LARGE, GHOST_NORM, LSTM, SKIP_INIT, WRN, group_of, profile, shares
from pages.results import NOT_MEASURED, load
from pages.text import paragraph, percent

# Memory traffic in bytes of a weight's update in mixed precision if its gradient stays in the kernel: read and write
# velocity and weight (4 each), write the bfloat16 weight (2).
BYTES_OF_UPDATE = 4 * 4 + 2
# The same with the matmuls that read the bfloat16 weight in both directions, 2 each.
BYTES_IN_MIXED = BYTES_OF_UPDATE + 2 * 2
# Bytes in the floor of `isotherm bench`.
BYTES_OF_FLOOR = bytes_per_step(1, "mixed")
# Layer widths of the autoencoder and of the LSTM.
WIDTHS = (784, 1000, 500, 250, 30, 250, 500, 1000, 784)
LSTM_WIDTH = 650
# The autoencoder's layers with activations, and the transfers per value in their kernels.
NUM_ACTIVATIONS = 6
ACTIVATIONS = {"_forward": 2, "_backward": 3}
# Filters of WRN-16-4, the kernels of their gradients, and the other convolution kernels.
NUM_FILTERS = 16
OF_FILTERS, OF_IMAGES = ("_sum_gradients", "sum_rows"), ("_convolve", "convolve_rows")


def limits_block() -> str:
    """Return how fast the heaviest kernels move their bytes."""
    texts = (_autoencoder_limit(), _large_autoencoder_limit(), _lstm_limit(), _convolution_limit(), _norm_limit())
    found = [text for text in texts if text]
    return "\n".join(paragraph(text, bullet=True) for text in found) or NOT_MEASURED


def _autoencoder_limit() -> str | None:
    row, measured = profile(AE, with_kernels=True), bench_row(AE)
    if row is None or measured is None:
        return None
    updates = [kernel for kernel in row["kernels"] if group_of(kernel["name"], AE) == "gradient and update"]
    num_weights = sum(aligned(a) * aligned(b) for a, b in pairwise(WIDTHS))
    num_updates = sum(kernel["calls"] for kernel in updates) / (len(WIDTHS) - 1)  # one call per matrix
    seconds = 1e-6 * sum(kernel["calls"] * kernel["microseconds"] for kernel in updates) / num_updates
    rate = BYTES_OF_UPDATE * row["num_runs"] * num_weights / seconds
    copy = measured["copy_bytes_per_second"]
    by_program = BYTES_IN_MIXED / BYTES_OF_FLOOR * measured["bytes_per_unit"] * measured["ours"] / copy
    return f"""**Autoencoder, B = 64**: {percent(measured["fraction_of_floor"])} of the floor, which counts
        {BYTES_OF_FLOOR} bytes per parameter and update. Without writing gradients it has to move
        {BYTES_IN_MIXED}; by that count it reaches {percent(by_program)}. Gradients and updates of all matrices in
        {row["num_runs"]} runs, {BYTES_OF_UPDATE} bytes per weight, take {1e6 * seconds:.0f} µs: {rate / 1e12:.1f} TB/s;
        a copy reaches {copy / 1e12:.1f}."""


def _large_autoencoder_limit() -> str | None:
    row, measured, matmuls = profile(AE_LARGE, with_kernels=True), bench_row(AE_LARGE), load("ceilings_h200")
    kernels = [] if row is None else row["kernels"]
    activations = {kernel["name"]: kernel for kernel in kernels if kernel["name"] in ACTIVATIONS}
    if row is None or measured is None or matmuls is None or len(activations) < len(ACTIVATIONS):
        return None
    groups = shares(row["kernels"], AE_LARGE)
    flop = measured["flop_per_unit"] * measured["ours"]
    sustained = max(r["sustained_flop_per_second"] for r in matmuls["rows"] if r["numbers"] == "normal")
    num_updates = activations["_forward"]["calls"] / NUM_ACTIVATIONS
    of_matmuls = [kernel for kernel in row["kernels"] if group_of(kernel["name"], AE_LARGE) == "matmuls"]
    seconds = 1e-6 * sum(kernel["calls"] * kernel["microseconds"] for kernel in of_matmuls) / num_updates
    part = measured["flop_per_unit"] * row["num_runs"] / seconds / sustained
    # Forward, activations read and write all hidden values but the code's; backward, they read two and write one. Each
    # has 2 bytes.
    num_values = sum(aligned(width) for width in WIDTHS[1:-1] if width != min(WIDTHS))
    num_values *= row["num_runs"] * measured["batch_size"]
    rates = [
        2 * transfers * num_values / (1e-6 * activations[name]["microseconds"] * NUM_ACTIVATIONS)
        for name, transfers in ACTIVATIONS.items()
    ]
    forward, backward = (f"{rate / 1e12:.1f}" for rate in rates)
    return f"""**Autoencoder, B = 4,096**: {flop / 1e12:.0f} TFLOP/s, {percent(measured["fraction_of_ceiling"])} of the
        ceiling, the fastest time of a large matmul; {percent(flop / sustained)} of what such matmuls sustain over
        {matmuls["seconds"]:g} seconds (below). Matmuls take {groups["matmuls"]:.0f} % of the kernel time, at
        {percent(part)} of that sustained speed. Activations take {groups["activations"]:.0f} %: forward {forward} and
        backward {backward} TB/s; a copy reaches {measured["copy_bytes_per_second"] / 1e12:.1f}. Optimiser
        {groups["optimiser"]:.0f} %."""


def _lstm_limit() -> str | None:
    row, measured = profile(LSTM, with_kernels=True), bench_row(AE)
    if row is None or measured is None:
        return None
    matmuls = [kernel for kernel in row["kernels"] if group_of(kernel["name"]) == "matmuls"]
    forward, backward = sorted(matmuls, key=lambda kernel: -kernel["calls"])[:2]
    num_bytes = 2 * aligned(LSTM_WIDTH) * 4 * aligned(LSTM_WIDTH) * row["num_runs"]
    rate = num_bytes / (1e-6 * forward["microseconds"])
    share = forward["percent"] + backward["percent"]
    groups = shares(row["kernels"])
    return f"""**LSTM, B = 64**: the recurrent matmuls, one for each of 35 tokens, two layers and both directions, take
        {share:.0f} % of the kernel time. Forward, one reads the bfloat16 weights of {row["num_runs"]} runs,
        {num_bytes / 1e6:.0f} MB, in {forward["microseconds"]:.0f} µs: {rate / 1e12:.1f} TB/s; a copy reaches
        {measured["copy_bytes_per_second"] / 1e12:.1f}. LSTM cell kernels take {groups["LSTM cell"]:.0f} %, softmax and
        its gradient {groups["softmax"]:.0f} %.{f" The {row['note']}." if row["note"] else ""}"""


def _convolution_limit() -> str | None:
    """Return how fast our convolution kernels are inside a network."""
    parts = []
    for label in (f"{WRN}:64", f"{WRN}:1024", SKIP_INIT):
        row, measured = profile(label, with_kernels=True), bench_row(label)
        if row is None or measured is None:
            continue
        # Every update has 16 filter gradients.
        num_updates = sum(k["calls"] for k in row["kernels"] if k["name"] in OF_FILTERS) / NUM_FILTERS
        ours = [kernel for kernel in row["kernels"] if kernel["name"] in (*OF_FILTERS, *OF_IMAGES)]
        seconds = 1e-6 * sum(kernel["calls"] * kernel["microseconds"] for kernel in ours) / num_updates
        flop = measured["flop_per_unit"] * measured["batch_size"] * row["num_runs"]
        ceiling = measured["ours"] * measured["flop_per_unit"] / measured["fraction_of_ceiling"]
        share = sum(kernel["percent"] for kernel in ours)
        parts.append(
            f"{label} with {row['num_runs']} runs at {row['commit']} {flop / seconds / 1e12:.0f} TFLOP/s, "
            f"{percent(flop / seconds / ceiling)} of the ceiling, in {share:.0f} % of the kernel time"
        )
    if not parts:
        return None
    return f"""**Wide-ResNets, our convolution kernels**, with the fused sums: {"; ".join(parts)}.
        Only the FLOP of the network count, not those of padded channels."""


def _norm_limit() -> str | None:
    kernels, measured = load("kernels_h200"), bench_row(AE)
    row = profile(f"{WRN}:8192", with_kernels=True)
    if kernels is None or measured is None or row is None:
        return None
    seconds = 1e-6 * sum(kernel["microseconds"] for kernel in row["kernels"] if kernel["name"] in GHOST_NORM)
    num_layers = sum(r["num_layers"] for r in kernels["rows"] if r["batch_size"] == 1024)
    rate = moved_bytes(kernels, 1024) * 8192 / 1024 / (num_layers * seconds)
    return f"""**WRN-16-4, B = 8,192**, at {row["commit"]}, with cuDNN's convolutions: the ghost batch norm kernels move
        {rate / 1e12:.1f} TB/s inside the network; a copy reaches {measured["copy_bytes_per_second"] / 1e12:.1f}."""
