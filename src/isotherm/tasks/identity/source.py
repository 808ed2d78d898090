"""The text of a function: its source without comments and layout, or its byte code where no source fits it.

A source is believed only if it compiles to the very code that the function runs; a file may have been edited since.
"""

from __future__ import annotations

import ast
import bisect
import dis
import inspect
import linecache
import types
import warnings
from collections.abc import Iterator
from typing import Any

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Position = tuple[int, int]
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # cells of a notebook may use it
_NO_MEANING = {"CACHE", "EXTENDED_ARG", "NOP", "RESUME", "PUSH_NULL", "PRECALL"}
_SYNONYMS = {"LOAD_METHOD": "LOAD_ATTR"}  # Python 3.11 chooses by whether the same file imports the name before it
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_KIND_OF_FUNCTION = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


class Sources:
    """Reads every file once."""

    def __init__(self) -> None:
        self._files: dict[str, list[_File]] = {}

    def text(self, function: types.FunctionType) -> list[object]:
        """Return what a function's code says, the same in every process."""
        code = function.__code__
        for file in self._versions(code.co_filename, function.__globals__):
            node = file.definition(code)
            if node is not None:
                return ["source", ast.unparse(node)]
        return ["byte code", byte_code(code)]

    def _versions(self, name: str, module_globals: dict[str, Any]) -> list[_File]:
        """Return the file as Python remembers it and, where that is another text, as it is now."""
        if name not in self._files:
            texts = ["".join(linecache.getlines(name, module_globals))]
            linecache.checkcache(name)
            texts.append("".join(linecache.getlines(name, module_globals)))
            parsed = (_File.parse(text) for text in dict.fromkeys(texts) if text)
            self._files[name] = [file for file in parsed if file is not None]
        return self._files[name]


def byte_code(code: types.CodeType) -> list[object]:
    """Return the instructions with what they refer to, without line numbers and docstrings."""
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _NO_MEANING]
    offsets = [instruction.offset for instruction in instructions]

    def index(offset: int) -> int:
        return bisect.bisect_left(offsets, offset)

    listing = [
        [_SYNONYMS.get(i.opname, i.opname), index(i.argval) if i.opcode in _JUMPS else constant(i.argval)]
        for i in instructions
    ]
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    handlers = [[index(e.start), index(e.end), index(e.target), e.depth, e.lasti] for e in entries]
    arguments = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _KIND_OF_FUNCTION]
    return [arguments, list(code.co_varnames), listing, handlers]


def constant(value: Any) -> object:
    """Return a constant of a code object as JSON values.

    >>> constant((1, "a", frozenset({"b"})))
    ['tuple', '1', "'a'", ['frozenset', "'b'"]]
    """
    if isinstance(value, types.CodeType):
        return byte_code(value)
    if isinstance(value, tuple):
        return ["tuple", *map(constant, value)]
    if isinstance(value, frozenset):
        return ["frozenset", *sorted(map(constant, value), key=repr)]
    return repr(value)


class _File:
    """One text: its definitions, and the code they compile to."""

    def __init__(self, tree: ast.Module, compiled: types.CodeType) -> None:
        self._codes: dict[str, list[types.CodeType]] = {}
        for code in codes_within(compiled):
            self._codes.setdefault(code.co_name, []).append(code)
        nodes = list(ast.walk(_WithoutRemarks().visit(tree)))
        self._functions = {
            (node.name, min([node.lineno, *(d.lineno for d in node.decorator_list)])): node
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        self._lambdas = [node for node in nodes if isinstance(node, ast.Lambda)]

    @classmethod
    def parse(cls, text: str) -> _File | None:
        """Return the file, or None if it is no Python of this release."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            try:
                tree = compile(text, "<read>", "exec", ast.PyCF_ONLY_AST | _FLAGS, dont_inherit=True)
                return cls(tree, compile(tree, "<read>", "exec", _FLAGS, dont_inherit=True))
            except (SyntaxError, ValueError):
                return None

    def definition(self, code: types.CodeType) -> _Definition | None:
        """Return the definition that compiles to a code object; of several, the nearest."""
        found = [c for c in self._codes.get(code.co_name, ()) if _is_same(c, code)]
        if not found:
            return None
        nearest = min(found, key=lambda c: abs(c.co_firstlineno - code.co_firstlineno))
        if nearest.co_name == "<lambda>":
            return self._lambda(nearest)
        return self._functions.get((nearest.co_name, nearest.co_firstlineno))

    def _lambda(self, code: types.CodeType) -> ast.Lambda | None:
        """Return the innermost lambda whose body contains every instruction; one line may hold several."""
        spans = [((p[0], p[2]), (p[1], p[3])) for p in code.co_positions() if None not in p and p[2] != p[3]]
        on_line = [node for node in self._lambdas if node.lineno == code.co_firstlineno]
        if not spans:
            return on_line[0] if len(on_line) == 1 else None
        holding = [n for n in on_line if all(_start(n.body) <= a and b <= _end(n.body) for a, b in spans)]
        return max(holding, key=lambda node: _start(node.body), default=None)


class _WithoutRemarks(ast.NodeTransformer):
    """Drops docstrings and every other constant that stands alone."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if getattr(node, "body", None) == []:
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node


def codes_within(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and those of all functions, classes and comprehensions inside it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from codes_within(value)


def _is_same(one: types.CodeType, other: types.CodeType) -> bool:
    """Tell whether two code objects do the same, on whatever lines they stand."""
    names = ("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount")
    return all(getattr(one, n) == getattr(other, n) for n in names) and byte_code(one) == byte_code(other)


def _start(node: ast.expr) -> _Position:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> _Position:
    return node.end_lineno or 0, node.end_col_offset or 0
