"""The page itself: its HTML, style and script, served or frozen into one file."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from isotherm.core.json import json_line
from isotherm.report.files import write_atomically
from isotherm.report.page import page_environment
from isotherm.report.style import scale_colours
from isotherm.report.watch.cell import cell_content, cell_keys
from isotherm.report.watch.compare import difference_rows, partner
from isotherm.report.watch.content import Plain
from isotherm.report.watch.live import Live
from isotherm.report.wording import power_text, rate_text
from isotherm.running.store import Store

TEMPLATE = "watch.html.jinja"
_EXPONENTS = range(-40, 41)
# What a page may do: run and show its own files. Nothing comes from elsewhere, nothing goes elsewhere.
# Plotly adds its rules to style elements that are empty in the page, which is what the hash is of.
_EMPTY = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {_EMPTY}; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file of the page, under a name that changes with its content, so that a browser may keep it."""

    name: str
    kind: str
    content: bytes

    @functools.cached_property
    def packed(self) -> bytes:
        """The content, compressed."""
        return gzip.compress(self.content, 6, mtime=0)


@functools.cache
def assets() -> dict[str, Asset]:
    """Return the script, the style and plotly, by what the page calls them."""
    from plotly.offline import get_plotlyjs  # only a page needs it

    own = resources.files("isotherm.report.watch") / "assets"
    contents = {
        "script": ("watch.js", "text/javascript", (own / "watch.js").read_bytes()),
        "style": ("watch.css", "text/css", (own / "watch.css").read_bytes()),
        "plotly": ("plotly.js", "text/javascript", get_plotlyjs().encode()),
    }
    return {
        key: Asset(name=_versioned(name, content), kind=kind, content=content)
        for key, (name, kind, content) in contents.items()
    }


def served_page() -> bytes:
    """Return the page that fetches what it shows from the server that it came from."""
    found = assets()
    page = page_environment().get_template(TEMPLATE)
    names = {key: f"assets/{asset.name}" for key, asset in found.items()}
    return page.render(policy=None, names=names, inline=None, look=look(), frozen=None).encode()


def combined_state(lives: Sequence[Live], name: str | None) -> Plain:
    """Return the state of a store, and of the one that it is compared with."""
    first, *others = lives
    state = first.state(name)
    if not others or not state["is_read"] or others[0].shown is None or first.shown is None or state["map"] is None:
        return {**state, "other": None, "is_compared": bool(others)}
    here = state["map"]["id"]
    there = partner(first.shown.maps, here, others[0].shown.maps)
    other = others[0].state(there)
    if there is None:
        return {**state, "other": {**other, "map": None}, "is_compared": True, "difference": []}
    rows = difference_rows(first.shown.maps[here][1], others[0].shown.maps[there][1])
    return {**state, "other": other, "is_compared": True, "difference": rows}


def look() -> Plain:
    """Return what figures share with those of reports: colours, and how learning rates are written."""
    return {
        "colours": scale_colours(9),
        "rates": {str(k): rate_text(2.0**k) for k in _EXPONENTS},
        "powers": {str(k): power_text(2.0**k) for k in _EXPONENTS},
    }


def write_frozen(lives: Sequence[Live], path: str | Path) -> Path:
    """Write the page of stores as they are now into one HTML file, with every map and every cell."""
    found = assets()
    shown = lives[0].shown
    names = [] if shown is None else list(shown.maps)
    frozen = {
        "states": {name: combined_state(lives, name) for name in names} or {"": combined_state(lives, None)},
        "cells": [_frozen_cells(live) for live in lives],
    }
    script, style, plotly = (found[key].content.decode() for key in ("script", "style", "plotly"))
    inline = {key: text.replace("</script", "<\\/script") for key, text in (("script", script), ("plotly", plotly))}
    inline["style"] = style
    hashes = {key: _hash(text) for key, text in inline.items()}
    policy = (
        f"default-src 'none'; script-src '{hashes['plotly']}' '{hashes['script']}'; "
        f"style-src '{hashes['style']}' {_EMPTY}; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    page = page_environment().get_template(TEMPLATE)
    text = page.render(policy=policy, names=None, inline=inline, look=look(), frozen=_packed(frozen))
    return write_atomically(Path(path), text.encode())


def _frozen_cells(live: Live) -> dict[str, Plain]:
    """Return every cell of every map, by map, row and column."""
    found: dict[str, Plain] = {}
    if live.shown is None:
        return found
    with Store.read(live.path) as store:
        for name, (_, grids) in live.shown.maps.items():
            for row, grid in enumerate(grids):
                for column in range(len(grid.tuned.grid.cells)):
                    curves = store.results_of(cell_keys(grid, column))
                    content = cell_content(grid, column, curves=curves)
                    if content is not None:
                        found[f"{name}|{row}|{column}"] = content
    return found


def _packed(content: Plain) -> str:
    """Return JSON, compressed, in the letters of base64: a browser unpacks it."""
    return base64.b64encode(gzip.compress(json_line(content).encode(), 6, mtime=0)).decode()


def _versioned(name: str, content: bytes) -> str:
    stem, _, suffix = name.rpartition(".")
    return f"{stem}.{hashlib.sha256(content).hexdigest()[:12]}.{suffix}"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
