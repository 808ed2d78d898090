"""Tables of pandas as arrays. pandas itself is never imported: who passes a frame has it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotherm.errors import UserError

_NUMBERS = "iufb"  # kinds of dtypes


def is_pandas(value: Any) -> bool:
    """Tell whether a value is a frame, a series or an index of pandas."""
    return type(value).__module__.split(".")[0] == "pandas" and hasattr(value, "to_numpy")


def as_array(table: Any, where: str) -> NDArray[Any]:
    """Return the numbers of a frame or series in the smallest dtype that holds all columns."""
    columns = _columns(table)
    other = [name for name, column in columns.items() if column.dtype.kind not in _NUMBERS]
    if other:
        raise UserError(f"{where}: {_listed(other, table)} no numbers ({columns[other[0]].dtype}); {_remedy(table)}")
    missing = [name for name, column in columns.items() if column.isna().any()]
    if missing:
        raise UserError(f"{where}: {_listed(missing, table)} missing values; fill or drop them, e.g. with .dropna()")
    dtype = np.result_type(*(_numpy_dtype(column.dtype) for column in columns.values()))
    array: NDArray[Any] = table.to_numpy(dtype=dtype)
    return array


def check_same_rows(inputs: Any, targets: Any, where: str) -> None:
    """Refuse inputs and targets whose rows are labelled differently: row by row they would not belong together."""
    if not all(is_pandas(table) and hasattr(table, "index") for table in (inputs, targets)):
        return
    if len(inputs) == len(targets) and not inputs.index.equals(targets.index):
        raise UserError(
            f"{where}: the rows of inputs and targets have different labels; put them in one order with "
            "y.loc[x.index], or, if they are in the same order, drop the labels: y.to_numpy()"
        )


def _columns(table: Any) -> dict[Any, Any]:
    return {name: table[name] for name in table.columns} if hasattr(table, "columns") else {table.name: table}


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of the numbers in a column; nullable and sparse columns name it."""
    found: np.dtype[Any] = np.dtype(getattr(dtype, "numpy_dtype", getattr(dtype, "subtype", dtype)))
    return found


def _listed(names: list[Any], table: Any) -> str:
    verb = "has" if len(names) == 1 else "have"
    if not hasattr(table, "columns"):
        return "the series has"
    listed = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"column{'s' if len(names) > 1 else ''} {listed} {verb}"


def _remedy(table: Any) -> str:
    if hasattr(table, "columns"):
        return "drop them, or make columns of 0 and 1 with pandas.get_dummies(x)"
    return "number them, e.g. y.astype('category').cat.codes"
