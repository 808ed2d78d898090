"""The page of a diagnosis: one self-contained HTML file with its figures."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from isotherm.core.json import json_text
from isotherm.diagnose.boundary import USED_PART
from isotherm.diagnose.diagnosis import Diagnosis
from isotherm.diagnose.stability import PROGRESS
from isotherm.errors import UserError
from isotherm.report.axes import DOTS_PER_INCH, FORMATS, METADATA, RC
from isotherm.report.diagnosis.figures import failure_figure, has_map, loss_figure, map_figure
from isotherm.report.diagnosis.text import (
    answer_sentences,
    boundaries_table,
    choices_table,
    cost_sentence,
    current_sentence,
    grids_table,
    headline,
    isotherm_sentence,
    probes_table,
    stability_table,
)
from isotherm.report.files import write_atomically
from isotherm.report.page import library_versions, page_environment
from isotherm.report.wording import count_text, momentum_label

TEMPLATE = "diagnosis.html.jinja"


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A figure on the page: a data URL with the image, and alternative text."""

    source: str
    words: str
    caption: str


def write_diagnosis(diagnosis: Diagnosis, path: str | Path) -> Path:
    """Write the page of a diagnosis and return its path; equal diagnoses give equal files.

    Args:
        diagnosis: what to show.
        path: of the HTML file; its folder is created if needed.
    """
    page = page_environment().get_template(TEMPLATE).render(**_content(diagnosis))
    return write_atomically(Path(path), page.encode())


def save_map(diagnosis: Diagnosis, path: str | Path) -> Path:
    """Write the map of learning rate against batch size as PNG, PDF or SVG, by the suffix of the path."""
    path = Path(path)
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        raise UserError(f"figure {path}: the suffix {path.suffix!r} is not a known format; use .png, .pdf or .svg")
    return write_atomically(path, _drawn(map_figure, diagnosis, form))


def _drawn(make: Callable[[Diagnosis], Figure], diagnosis: Diagnosis, form: str, **rc: Any) -> bytes:
    content = io.BytesIO()
    with matplotlib.rc_context(RC | rc):
        make(diagnosis).savefig(content, format=form, dpi=DOTS_PER_INCH, metadata=METADATA[form])
    return content.getvalue()


def _content(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "task": diagnosis.task,
        "summary": [
            count_text(diagnosis.num_train, "training example"),
            f"for {diagnosis.budget}",
            f"SGD and {momentum_label(diagnosis.momentum)}",
            cost_sentence(diagnosis).removesuffix("."),
        ],
        "headline": headline(diagnosis),
        "is_answered": diagnosis.choice is not None,
        "answer": answer_sentences(diagnosis),
        "code": "\n".join(diagnosis.choice_code),
        "current": current_sentence(diagnosis),
        "missing": diagnosis.missing,
        "choices": choices_table(diagnosis) if diagnosis.choices else None,
        "map": _map_picture(diagnosis) if has_map(diagnosis) else None,
        "boundaries": boundaries_table(diagnosis),
        "agreement": diagnosis.agreement,
        "isotherm": isotherm_sentence(diagnosis),
        "failures": _failure_picture(diagnosis) if diagnosis.stability else None,
        "stability": stability_table(diagnosis),
        "losses": _loss_picture(diagnosis) if diagnosis.grids else None,
        "grids": grids_table(diagnosis),
        "probes": probes_table(diagnosis),
        "expectations": diagnosis.expectations,
        "versions": library_versions(),
        "settings": json_text(diagnosis.settings).rstrip(),
    }


def _map_picture(diagnosis: Diagnosis) -> Picture:
    return Picture(
        source=_source(map_figure, diagnosis),
        words="Effective learning rate against batch size, with isotherm, ceilings, optima and the boundary B*",
        caption=(
            "The isotherm goes through the optima of the short grids. Ceilings are the largest learning rates to use, "
            f"{100 * USED_PART:g} % of the largest stable ones. Where the isotherm meets a ceiling (dotted), curvature "
            "takes over from noise in setting the learning rate: that is B*, from the short runs. The strip compares "
            "it with the other estimates; an arrow stands for one beyond the map. Bars and bands are 95 % intervals."
        ),
    )


def _failure_picture(diagnosis: Diagnosis) -> Picture:
    return Picture(
        source=_source(failure_figure, diagnosis),
        words="Fraction of failed short runs against effective learning rate, with and without momentum",
        caption=(
            f"A run fails if it diverges or makes less than {100 * PROGRESS:g} % of the progress of the best learning "
            "rate. The limit is where half of the runs fail."
        ),
    )


def _loss_picture(diagnosis: Diagnosis) -> Picture:
    return Picture(
        source=_source(loss_figure, diagnosis),
        words="Held-out metric after short trainings against effective learning rate, for each batch size and length",
        caption=(
            "Mean and standard deviation over seeds. The optimum is the peak of a parabola through the best mean and "
            "its neighbours. On an isotherm it doubles with the batch; where a longer training wants another learning "
            "rate, it moves with the number of updates."
        ),
    )


def _source(make: Callable[[Diagnosis], Figure], diagnosis: Diagnosis) -> str:
    """Return a figure as a data URL; text is drawn as paths, as a reader may lack the font."""
    image = _drawn(make, diagnosis, "svg", **{"svg.fonttype": "path"})
    return f"data:image/svg+xml;base64,{base64.b64encode(image).decode()}"
