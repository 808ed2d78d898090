"""Why a module cannot be trained as a fleet, or is slow in one: the layer, what it does, and what to do instead."""

from __future__ import annotations

import re
from types import TracebackType

from torch import nn

from isotherm.tasks.raised import message_of

# Parts of PyTorch's messages, what they mean, and what helps.
_KNOWN = (
    (
        "randomness error mode",
        "it draws random numbers other than dropout's",
        "nn.Dropout and functional.dropout draw a run's own",
    ),
    (
        "data-dependent control flow",
        "it chooses by the values of its data",
        "use torch.where, and a mask in place of packed sequences",
    ),
    ("vmap: inplace arithmetic", "it writes a run's values into a tensor of all runs", "make a new tensor"),
    ("fallback path doesn't work on", "it writes into a tensor or a view by out=", "make a new tensor"),
)
# The same for operations that are computed run by run.
_REMEDIES = {
    "embedding_renorm_": "leave max_norm out, L2 keeps the norms small",
    "_embedding_bag": "give nn.EmbeddingBag rows (n, T), and no offsets or max_norm",
}
_SPECTRAL_NORM = (
    "spectral_norm overwrites the singular vectors that it keeps at every call, which cannot be done for many runs at "
    "once; it has no form that trains as a fleet, torch.nn.utils.parametrizations.weight_norm or a LayerNorm does"
)
_OPERATION = re.compile(r"aten::(\w+)")


def reason_for(error: BaseException) -> str:
    """Return an error in a sentence, with the layer that raised it and a remedy where there is one.

    >>> reason_for(ValueError("No. Not this."))
    'ValueError: No'
    """
    text = message_of(error)
    if _is_in_spectral_norm(error.__traceback__):
        return f"{place_of(error)}{_SPECTRAL_NORM}"
    for part, meaning, remedy in _KNOWN:
        if part in text:
            return f"{place_of(error)}{meaning}; {remedy}"
    first_sentence = text.partition("\n")[0].partition(". ")[0]
    return f"{place_of(error)}{type(error).__name__}: {first_sentence}"


def slow_operation(error: BaseException) -> str:
    """Return what `vmap` computes run by run, from the error where it may not."""
    found = _OPERATION.search(str(error))
    operation = "an operation of this model or its loss" if found is None else found.group(1)
    place, remedy = place_of(error).rstrip(": "), _REMEDIES.get(operation)
    return " ".join(filter(None, (operation, place, remedy and f"({remedy})")))


def place_of(error: BaseException) -> str:
    """Return "in layer 'name' (class): " for the innermost module that raised an error; "" if none did."""
    modules = _modules(error.__traceback__)
    if not modules:
        return ""
    model, layer = modules[0], modules[-1]
    name = next((name for name, part in model.named_modules() if part is layer), "")
    return f"in layer {name!r} ({type(layer).__name__}): " if name else f"in {type(layer).__name__}: "


def _is_in_spectral_norm(trace: TracebackType | None) -> bool:
    """Tell whether spectral_norm's code was running, the parametrization or the older hook."""
    while trace is not None:
        if type(trace.tb_frame.f_locals.get("self")).__name__ in ("_SpectralNorm", "SpectralNorm"):
            return True
        trace = trace.tb_next
    return False


def _modules(trace: TracebackType | None) -> list[nn.Module]:
    """Return the modules whose code was running, the outermost first."""
    found: list[nn.Module] = []
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Module):
            found.append(owner)
        trace = trace.tb_next
    return found
