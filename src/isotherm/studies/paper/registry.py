"""The registry: every module beside this one that defines `OBJECT` is a figure or table of the paper.

Their docstrings give the cost that `isotherm reproduce list` does, and what the paper found.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re

from isotherm.errors import UserError, nearest
from isotherm.studies import paper
from isotherm.studies.paper.definition import PaperObject, Scale


@functools.cache
def objects() -> dict[str, PaperObject]:
    """Return every object by its identifier: figures, tables, then checks in the text, each by number."""
    names = [module.name for module in pkgutil.iter_modules(paper.__path__) if not module.ispkg]
    modules = [importlib.import_module(f"{paper.__name__}.{name}") for name in names]
    found = [module.OBJECT for module in modules if hasattr(module, "OBJECT")]
    return {one.identifier: one for one in sorted(found, key=lambda one: _order(one.identifier))}


def find(identifier: str) -> PaperObject:
    """Return an object by name; figure 1 is also fig1, f1 or "Figure 1".

    Raises:
        UserError: there is no such object.
    """
    known = objects()
    meant = _full_name(identifier)
    if meant not in known:
        raise UserError(f"the paper has no {identifier!r}; {nearest(meant, known)}")
    return known[meant]


def find_scale(name: str) -> Scale:
    """Return a scale by name.

    Raises:
        UserError: there is no such scale.
    """
    if name not in set(Scale):
        raise UserError(f"{name!r} is not a scale; {nearest(name, [str(scale) for scale in Scale])}")
    return Scale(name)


def _full_name(identifier: str) -> str:
    """Return an identifier as the registry spells it.

    >>> _full_name("Fig 3"), _full_name("T1"), _full_name("table_7"), _full_name("x1")
    ('figure3', 'table1', 'table7', 'x1')
    """
    found = re.fullmatch(r"([a-z]+?)[\s_.\-]*(\d+)", identifier.strip().lower())
    if found is None:
        return identifier
    word, number = found.groups()
    kind = {"f": "figure", "fig": "figure", "t": "table", "tab": "table"}.get(word, word)
    return f"{kind}{number}"


def _order(identifier: str) -> tuple[int, int]:
    found = re.fullmatch(r"([a-z]+)(\d+)", identifier)
    assert found is not None, identifier
    return ("figure", "table", "x").index(found[1]), int(found[2])
