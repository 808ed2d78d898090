"""Changes that must not show: a store that takes one for another network trains everything again."""

import ast
import json
import linecache
import os
import pickle
import subprocess
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from helpers_identity import files_of, imported, parts_in, parts_of, variant, write

HELPER = "def act(x):\n    return x * SCALE + 1\nSCALE = 2\n"
USING = "return act(self.layer(x))"

# name -> (text before the model, body of forward); <<a||b>> is a in one variant and b in the other
SAME: dict[str, tuple[str, str]] = {
    "comment": (f"{HELPER}", "<<||# a remark\n        >>return act(self.layer(x))"),
    "comment at the end of a line": ("", "return self.layer(x)<<||  # a remark>>"),
    "docstring": ("def act(x):\n    <<||'''A remark.'''\n    >>return x * 2", USING),
    "docstring of a class": ("class A:\n    <<||'''A remark.'''\n    >>s = 2", "return self.layer(x) * A.s"),
    "docstring of code without a source": (
        "space = {}\nexec('def act(x):\\n    <<||\"A remark.\"\\n    >>return x * 2', space)\nact = space['act']",
        USING,
    ),
    "layout": ("def act(x, s=2):\n    return <<x * s||(\n        x\n        * s\n    )>>", USING),
    "blank lines": ("<<||\n\n\n>>" + HELPER, USING),
    "quotes": (
        "KIND = <<'relu'||\"relu\">>",
        "return getattr(torch, <<'relu'||\"relu\">>)(self.layer(x)) if KIND else x",
    ),
    "parentheses": ("", "return <<self.layer(x) * 2||(self.layer(x)) * (2)>>"),
    "way of writing a number": ("", "return self.layer(x) * <<1000.0||1_000.0>>"),
    "layout of annotations": ("def act(<<x: torch.Tensor||x:torch.Tensor>>): return x", USING),
    "unrelated global": ("<<||UNUSED = 3\n>>" + HELPER, USING),
    "value of an unrelated global": ("UNUSED = <<2||3>>\n" + HELPER, USING),
    "global with the name of a method": ("relu = <<2||3>>\n", "return self.layer(x).relu()"),
    "unrelated import": ("<<||import json\n>>" + HELPER, USING),
    "order of definitions": (
        "<<def a(x): return b(x)\ndef b(x): return x * 2||def b(x): return x * 2\ndef a(x): return b(x)>>",
        "return a(self.layer(x)) + b(x)",
    ),
    "order of methods": (
        "class C:\n<<    def a(self): return 2\n    def b(self): return 3||"
        "    def b(self): return 3\n    def a(self): return 2>>",
        "return self.layer(x) * C().a() * C().b()",
    ),
    "order of a set": ("ON = {<<'a', 'b', 'c'||'c', 'b', 'a'>>}", "return self.layer(x) * len(ON)"),
    "unrelated part of a user's module": (
        "import layers\n",
        "return layers.act(self.layer(x))\n# file: layers.py\nUNUSED = <<2||3>>\ndef act(x): return x * 2\n"
        "def other(x): return x * <<2||3>>\n",
    ),
    "logger": ("import logging\nLOG = logging.getLogger('<<a||b>>')", "LOG.debug('')\n        return self.layer(x)"),
    "lock": (
        "import threading\nLOCK = threading.<<Lock||Lock>>()<<|| >>",
        "with LOCK:\n            return self.layer(x)",
    ),
    "thread": (
        "import threading\nT = threading.Thread(name='<<a||b>>')",
        "return self.layer(x) if not T.is_alive() else x",
    ),
    "weak reference": (
        "import weakref\nclass A: s = 2\na = A()\n<<||class B: pass\nWEAK = weakref.ref(B())\n>>REF = weakref.ref(a)",
        "return self.layer(x) if REF() else x",
    ),
    "open file": (
        "import sys\nOUT = sys.<<stdout||stderr>>",
        "print('', file=OUT)\n        return self.layer(x)",
    ),
    "generator": ("G = (n for n in range(<<2||3>>))", "return self.layer(x) if G is not None else x"),
    "random generator": ("G = torch.Generator().manual_seed(<<2||3>>)", "return self.layer(x) if G else x"),
    "address of an object": ("TOKEN = object()\n<<||OTHER = object()\n>>", "return self.layer(x) if TOKEN else x"),
    "number of a hook": (
        "<<||nn.ReLU().register_forward_hook(print)\n>>"
        "def hook(m, x, y): return y\n"
        "def build():\n    m = nn.ReLU()\n    m.register_forward_hook(hook)\n    return m\n",
        "",
    ),
    "number of an autograd function": (
        "<<||class G(torch.autograd.Function): pass\n>>class F(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x): return x\n",
        "return F.apply(self.layer(x))",
    ),
    "what a cache holds": (
        "@functools.lru_cache\ndef scale(n): return n\n<<||scale(3)\n>>",
        "return self.layer(x) * scale(2)",
    ),
    "one object in two places": (
        "A = (1, 2)\nB = <<A||tuple([1, 2])>>",
        "return self.layer(x) * A[0] * B[1]",
    ),
    "import under a global name that is not used": (
        "<<||import layers\n>>",
        "return self.layer(x)\n# file: layers.py\nS = 2\n",
    ),
    "copy of an object": (
        "import copy\nclass A:\n    def __init__(self): self.s = 2\nA_ = A()\n<<||copy.deepcopy(A_)\n>>",
        "return self.layer(x) * A_.s",
    ),
    "cached property of an object": (
        "class C:\n    @functools.cached_property\n    def s(self): return torch.ones(2)\nC_ = C()\n<<||C_.s\n>>",
        "return self.layer(x) * C_.s",
    ),
    "docstring of a dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    <<||'''A remark.'''\n    >>s: int = 2",
        "return self.layer(x) * C().s",
    ),
    "subclass that nobody asks for": ("class B: s = 2\n<<||class D(B): pass\n>>", "return self.layer(x) * B.s"),
    "check of an abstract class": (
        "import abc\nclass B(abc.ABC): pass\nclass X: pass\n<<||isinstance(X(), B)\n>>",
        "return self.layer(x) * (2 if issubclass(X, B) else 3)",
    ),
}
CASES = {name: files_of(text + "\n", forward) for name, (text, forward) in SAME.items()}


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 20


@pytest.mark.parametrize("name", CASES)
def test_a_change_without_meaning_does_not_show(name: str, tmp_path: Path) -> None:
    one, other = (variant(CASES[name], which) for which in (0, 1))
    assert one != other
    assert parts_in(tmp_path / "one", one) == parts_in(tmp_path / "other", other)


# -- where the files are ------------------------------------------------------------------------------------------

MOVED = files_of("import layers\nK = layers.K(3)\n", "return layers.act(self.layer(x)) * K.s") | {
    "layers.py": "class K:\n    def __init__(self, s): self.s = s\ndef act(x): return x * 2\n"
}


def test_a_file_may_move_and_be_renamed(tmp_path: Path) -> None:
    before = parts_in(tmp_path / "one", MOVED)
    renamed = {
        "model.py": MOVED["net.py"].replace("import layers", "import parts as layers"),
        "parts.py": MOVED["layers.py"],
    }
    assert parts_in(tmp_path / "far" / "away", renamed, "model") == before


def test_a_class_may_move_between_modules(tmp_path: Path) -> None:
    before = parts_in(tmp_path / "one", files_of("class K:\n    s = 2\n", "return self.layer(x) * K.s"))
    moved = files_of("from layers import K\n", "return self.layer(x) * K.s") | {"layers.py": "class K:\n    s = 2\n"}
    assert parts_in(tmp_path / "two", moved) == before


def test_the_working_directory_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = parts_in(tmp_path / "one", MOVED)
    monkeypatch.chdir(tmp_path)
    assert parts_in(tmp_path / "two", MOVED) == before


def test_a_file_may_be_edited_elsewhere_after_its_import(tmp_path: Path) -> None:
    files = files_of(HELPER, USING)
    with imported(write(files, tmp_path)) as module:
        before = parts_of(module)
        (tmp_path / "net.py").write_text("# moved\n\n" + files["net.py"] + "\nOTHER = 3\n")
        assert parts_of(module) == before


def test_a_function_edited_after_its_import_is_known_by_the_code_that_runs(tmp_path: Path) -> None:
    files = files_of(HELPER, USING)
    edited = {"net.py": files["net.py"].replace("x * SCALE", "x * 7")}
    new = parts_in(tmp_path / "new", edited)
    with imported(write(files, tmp_path / "old")) as module:
        write(edited, tmp_path / "old")
        assert parts_of(module)["code"] != new["code"]


def test_a_cached_property_may_have_been_used(tmp_path: Path) -> None:
    text = "class C:\n    @functools.cached_property\n    def s(self): return 2\nc = C()\n"
    with imported(write(files_of(text, "return self.layer(x) * c.s"), tmp_path)) as module:
        before = parts_of(module)
        assert module.c.s == 2
        assert parts_of(module) == before


def test_long_chains_of_functions_end(tmp_path: Path) -> None:
    chain = "".join(f"def f{n}(x): return f{n + 1}(x)\n" for n in range(300)) + "def f300(x): return x * <<2||3>>\n"
    one, other = (variant(files_of(chain, "return f0(self.layer(x))"), which) for which in (0, 1))
    assert parts_in(tmp_path / "one", one) == parts_in(tmp_path / "again", one)
    assert parts_in(tmp_path / "one", one) != parts_in(tmp_path / "other", other)


def test_entangled_functions_take_no_time(tmp_path: Path) -> None:
    """Every one of them calls every other: paths through them are beyond counting."""
    calls = " + ".join(f"f{n}(x)" for n in range(40))
    text = "".join(f"def f{n}(x): return {n} + {calls}\n" for n in range(40))
    files = files_of(text, "return f0(self.layer(x))")
    started = time.process_time()
    assert parts_in(tmp_path / "one", files) == parts_in(tmp_path / "again", files)
    assert time.process_time() - started < 5


def test_a_pickled_builder_is_the_same(tmp_path: Path) -> None:
    text = "W = (2, 2)\ndef made(widths): return nn.Linear(*widths if W else W)\nbuild = functools.partial(made, W)\n"
    with imported(write(files_of(text), tmp_path)) as module:
        before = parts_of(module)
        module.build = pickle.loads(pickle.dumps(module.build))
        assert module.build.args[0] is not module.W
        assert parts_of(module) == before


# -- the process ----------------------------------------------------------------------------------------------------

PROCESS = """
import argparse, array, collections, contextvars, dataclasses, datetime, decimal, enum, fractions, itertools, json
import logging, operator, pathlib, re, sys, threading, types, typing, unittest.mock, uuid, weakref
import numpy as np
T = typing.TypeVar("T")

def one(x): return x * 2
def two(x): return x + 1

class A:
    def __init__(self): self.s = {"a", "b", "c"}

class E(enum.Enum):
    P = "p"
    Q = "q"

ALL = {one, two, "x", 3.0}
NAMES = frozenset({"a", "b", "c", "d"})
TOKEN = object()
a = A()

# all sorts of things that a file may hold
class Slotted:
    __slots__ = ("s", "me")
slotted = Slotted()
slotted.s, slotted.me = {"a", "b"}, slotted
class Day(datetime.date):
    def double(self): return 2 * self.day
class Deco:
    def __init__(self, f):
        functools.update_wrapper(self, f)
    def __call__(self, x): return self.__wrapped__(x)
@Deco
def decorated(x):
    "Return it."
    return x
class Typed(typing.Generic[T]):
    def f(self, x: T) -> T: return x
@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    s: set[str] = dataclasses.field(default_factory=set)
def closed(*arguments): return lambda: A(*arguments)
around = [1, {"b": 2}]
around.append(around)
@functools.singledispatch
def dispatched(x): return x
@dispatched.register
def _(x: torch.Tensor): return x * 2
THINGS = [
    slotted, Day(2020, 2, 3), Typed(), Data({"x", "y"}), around, dispatched, decorated, closed(1, {"c"}),
    functools.partial(one, 2), functools.partial(torch.relu, 2), functools.partial(print, *{"a", "b"} & {"a"}),
    T, list[int], int | None,
    typing.Optional[A], re.compile("a+"), pathlib.Path("a/b"), decimal.Decimal("0.1"), fractions.Fraction(1, 3),
    array.array("d", [1.0]), collections.ChainMap({"a": 1}), collections.Counter("aab"), collections.UserDict(a=1),
    types.MappingProxyType({"a": 1}), operator.itemgetter(1), operator.methodcaller("f", 2), types.MethodType(one, 3),
    functools.partial(A), uuid.UUID(int=3), itertools.count(3), slice(1, None), memoryview(b"ab"),
    np.ma.masked_array([1.0, 2.0], [True, False]), np.dtype("f4"), np.add, np.random.default_rng(1), torch.relu,
    torch.ops.aten.add, torch.ops.aten.add.Tensor, nn.Linear, nn.ReLU(), torch.finfo(torch.float32),
    contextvars.ContextVar("v"), logging.getLogger(__name__), threading.Lock(), {}.get, len, {"a"}.union, super, type,
    NotImplemented, ..., sys.stdout, weakref.WeakValueDictionary(), json, A.__init__, a.__init__,
    torch.eye(2).to_sparse(), torch.empty(2, device="meta"), torch.tensor([1j]).conj(),
    torch.fx.symbolic_trace(nn.ReLU()), argparse.Namespace(a=1), unittest.mock.MagicMock, datetime.timezone.utc,
]

def use():
    "Return a number."
    return len(NAMES) * len(ALL) * len(a.s) * (TOKEN is not None) * len(E) * len(THINGS)
"""
TEXT = files_of(PROCESS, "assert x is not None\n        return self.layer(x) * use()")["net.py"]
# The same once more as a console has it: compiled, without a file.
TYPED = files_of(PROCESS, "return self.layer(x) * use()")["net.py"]
SCRIPT = f"""{TEXT}
def both():
    import types
    import warnings
    import helpers_identity
    warnings.simplefilter("ignore")
    found = []
    for text in ({TYPED!r}, {TYPED.replace("x * 2", "x * 3")!r}):
        typed = types.ModuleType("typed")
        exec(compile(text, "<stdin>", "exec"), vars(typed))
        found.append(helpers_identity.parts_of(typed))
    return [helpers_identity.parts_of(sys.modules[__name__]), *found]

if __name__ == "__main__":
    print(json.dumps(both()))
"""


def run(arguments: list[str], folder: Path, **environment: str) -> list[dict[str, str]]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, str]]]:
    """Return the parts as a module, as a script, and as a renamed module of an optimising process has them."""
    folder = write({"net.py": SCRIPT, "renamed.py": SCRIPT}, tmp_path_factory.mktemp("code"))
    with imported(folder) as module:
        here = module.both()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with ThreadPoolExecutor() as pool:
        script = pool.submit(run, [str(folder / "net.py")], elsewhere, PYTHONHASHSEED="1")
        optimised = pool.submit(run, ["-OO", "-m", "renamed"], folder, PYTHONHASHSEED="2")
    return [here, script.result(), optimised.result()]


def test_script_or_module_and_the_process_do_not_count(processes: list[list[dict[str, str]]]) -> None:
    here, script, optimised = (found[0] for found in processes)
    assert here == script
    assert here == optimised


def test_what_was_typed_in_a_console_is_the_same_in_the_next(processes: list[list[dict[str, str]]]) -> None:
    here, script, optimised = (found[1] for found in processes)
    assert here == script
    assert here == optimised
    assert processes[0][2]["code"] != here["code"]


def test_a_cell_of_a_notebook_is_read_like_a_file(tmp_path: Path) -> None:
    """Cells have no file, but Python remembers their lines. IPython compiles their statements one by one."""
    text = files_of(HELPER, "return nn.functional.relu(act(self.layer(x)))")["net.py"]
    cell = types.ModuleType("__main__")
    lines = text.splitlines(keepends=True)
    linecache.cache["<cell 1>"] = (len(text), None, lines, "<cell 1>")
    for statement in ast.parse(text).body:
        exec(compile(ast.Module([statement], []), "<cell 1>", "exec"), vars(cell))
    assert parts_of(cell) == parts_in(tmp_path, {"net.py": text})
