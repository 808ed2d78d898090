"""Changes that must show in a task's key: a store that misses one hands out the results of another network."""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from helpers_identity import files_of, imported, parts_in, parts_of, variant, write

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

# name -> (text before the model, body of forward)
CHANGES: dict[str, tuple[str, str]] = {
    "constant in forward": ("", "return self.layer(x) * <<2||3>>"),
    "operator": ("", "return self.layer(x) <<+||->> 1"),
    "method of a tensor": ("", "return self.layer(x).<<relu||tanh>>()"),
    "library function": ("", "return torch.<<relu||tanh>>(self.layer(x))"),
    "global int": ("SCALE = <<2||3>>", "return self.layer(x) * SCALE"),
    "int or float": ("SCALE = <<2||2.0>>", "return self.layer(x) * SCALE"),
    "int or bool": ("SCALE = <<1||True>>", "return self.layer(x) * SCALE"),
    "last bit of a float": ("SCALE = <<0.1||0.10000000000000002>>", "return self.layer(x) * SCALE"),
    "sign of zero": ("SCALE = <<0.0||-0.0>>", "return self.layer(x) / SCALE"),
    "global text": ("KIND = '<<relu||tanh>>'", "return getattr(torch, KIND)(self.layer(x))"),
    "global list": ("SCALES = [1, <<2||3>>]", "return self.layer(x) * SCALES[1]"),
    "nested dict": ("C = {'a': {'b': [<<2||3>>]}}", "return self.layer(x) * C['a']['b'][0]"),
    "order of a dict": ("C = {<<'a': 2, 'b': 3||'b': 3, 'a': 2>>}", "return self.layer(x) * next(iter(C.values()))"),
    "global set": ("ON = {'relu', '<<a||b>>'}", "return self.layer(x) if 'a' in ON else x"),
    "set of functions": (
        "def one(x): return x * <<2||3>>\ndef two(x): return x + 1\nALL = {one, two}",
        "return sum(f(self.layer(x)) for f in ALL)",
    ),
    "bytearray": ("B = bytearray(b'<<a||b>>')", "return self.layer(x) * B[0]"),
    "range": ("R = range(<<2||3>>)", "return self.layer(x) * len(R)"),
    "global tensor": ("W = torch.tensor([1.0, <<2||3>>])", "return self.layer(x) * W"),
    "dtype of a tensor": ("W = torch.ones(2, dtype=torch.<<float32||float64>>)", "return self.layer(x) * W"),
    "global dtype": ("D = torch.<<float32||float64>>", "return self.layer(x).to(D)"),
    "numpy array": ("import numpy as np\nW = np.array([1.0, <<2||3>>])", "return self.layer(x) * W[1]"),
    "numpy scalar": ("import numpy as np\nS = np.float32(<<2||3>>)", "return self.layer(x) * S"),
    "numpy array of objects": (
        "import numpy as np\nW = np.array([{'a': <<2||3>>}])",
        "return self.layer(x) * W[0]['a']",
    ),
    "helper function": ("def act(x): return x * <<2||3>>", "return act(self.layer(x))"),
    "helper of a helper": (
        "def inner(x): return x * <<2||3>>\ndef act(x): return inner(x)",
        "return act(self.layer(x))",
    ),
    "recursive helper": (
        "def act(x, n=2): return x * <<2||3>> if n == 0 else act(x, n - 1)",
        "return act(self.layer(x))",
    ),
    "one of two that call each other": (
        "def even(x, n): return x if n == 0 else odd(x, n - 1)\n"
        "def odd(x, n): return x * <<2||3>> if n == 0 else even(x, n - 1)",
        "return even(self.layer(x), 3)",
    ),
    "one of two lambdas on a line": (
        "T = {'a': lambda h: h, 'b': lambda h: h.relu()}\nACT = T['<<a||b>>']",
        "return ACT(self.layer(x))",
    ),
    "one lambda inside another": (
        "P = lambda h: (lambda g: g * <<2||3>>)(h)",
        "return P(self.layer(x))",
    ),
    "lambda in a table": ("T = [lambda h: h, lambda h: h * <<2||3>>]", "return T[1](self.layer(x))"),
    "default argument": ("def act(x, scale=<<2||3>>): return x * scale", "return act(self.layer(x))"),
    "default argument from a variable": (
        "S = <<2||3>>\ndef act(x, s=S): return x * s\ndel S",
        "return act(self.layer(x))",
    ),
    "keyword default": ("def act(x, *, scale=<<2||3>>): return x * scale", "return act(self.layer(x))"),
    "closure": (
        "def scaled(s):\n    return lambda x: x * s\nact = scaled(<<2||3>>)",
        "return act(self.layer(x))",
    ),
    "function in a closure": (
        "def after(f):\n    return lambda x: f(x)\nact = after(lambda h: h * <<2||3>>)",
        "return act(self.layer(x))",
    ),
    "nested function": ("", "def act(h):\n            return h * <<2||3>>\n        return act(self.layer(x))"),
    "global in a nested function": (
        "SCALE = <<2||3>>",
        "def act(h):\n            return h * SCALE\n        return act(self.layer(x))",
    ),
    "global in a comprehension": ("SCALE = <<2||3>>", "return sum(self.layer(x) * SCALE for _ in range(2))"),
    "attribute of a function": ("def act(x): return x * act.scale\nact.scale = <<2||3>>", "return act(self.layer(x))"),
    "user's module": (
        "import layers\n",
        "return layers.act(self.layer(x))\n# file: layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "global of a user's module": (
        "import layers\n",
        "return layers.act(self.layer(x))\n# file: layers.py\nS = <<2||3>>\ndef act(x): return x * S\n",
    ),
    "value in a user's module": (
        "import layers\n",
        "return self.layer(x) * layers.S\n# file: layers.py\nS = <<2||3>>\n",
    ),
    "user's module handed on": (
        "import layers\ndef call(m, x): return m.act(x)\n",
        "return call(layers, self.layer(x))\n# file: layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "name looked up in a user's module": (
        "import layers\n",
        "return getattr(layers, 'a' + 'ct')(self.layer(x))\n# file: layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "module under another name": (
        "import layers\n",
        "m = layers\n        return m.act(self.layer(x))\n# file: layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "package": (
        "import pkg.sub.layers\n",
        "return pkg.sub.layers.act(self.layer(x))\n# file: pkg/__init__.py\n# file: pkg/sub/__init__.py\n"
        "# file: pkg/sub/layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "relative import": (
        "from pkg.model import act\n",
        "return act(self.layer(x))\n# file: pkg/__init__.py\n# file: pkg/model.py\nfrom . import layers\n"
        "def act(x): return layers.act(x)\n# file: pkg/layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "import inside forward": (
        "",
        "import layers\n        return layers.act(self.layer(x))\n# file: layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "import of a name inside forward": (
        "",
        "from layers import act as a\n        return a(self.layer(x))\n# file: layers.py\n"
        "def act(x): return x * <<2||3>>\n",
    ),
    "renamed import inside forward": (
        "",
        "import pkg.layers as m\n        return m.act(self.layer(x))\n# file: pkg/__init__.py\n"
        "# file: pkg/layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "relative import inside a function": (
        "from pkg.model import act\n",
        "return act(self.layer(x))\n# file: pkg/__init__.py\n# file: pkg/model.py\ndef act(x):\n"
        "    from . import layers\n"
        "    return layers.act(x)\n# file: pkg/layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "all globals": ("HIDDEN = <<2||3>>", "return self.layer(x) * globals()['HID' + 'DEN']"),
    "class of a global object": (
        "class Act:\n    def __call__(self, x): return x * <<2||3>>\nact = Act()",
        "return act(self.layer(x))",
    ),
    "state of a global object": (
        "class Act:\n    def __init__(self, s): self.s = s\n    def __call__(self, x): return x * self.s\n"
        "act = Act(<<2||3>>)",
        "return act(self.layer(x))",
    ),
    "method of a global object": (
        "class Act:\n    def f(self, x): return x * <<2||3>>\nact = Act().f",
        "return act(self.layer(x))",
    ),
    "slots": (
        "class C:\n    __slots__ = ('s',)\n    def __init__(self, s): self.s = s\nc = C(<<2||3>>)",
        "return self.layer(x) * c.s",
    ),
    "private slots": (
        "class C:\n    __slots__ = ('__s',)\n    def __init__(self, s): self.__s = s\n"
        "    def get(self): return self.__s\n"
        "c = C(<<2||3>>)",
        "return self.layer(x) * c.get()",
    ),
    "subclass of a dict": (
        "class C(dict):\n    __getattr__ = dict.__getitem__\nc = C(s=<<2||3>>)",
        "return self.layer(x) * c.s",
    ),
    "subclass of a float": ("class F(float): pass\nS = F(<<2||3>>)", "return self.layer(x) * S"),
    "lru_cache": (
        "@functools.lru_cache\ndef scale(): return <<2||3>>",
        "return self.layer(x) * scale()",
    ),
    "jit.script function": (
        "@torch.jit.script\ndef act(x: torch.Tensor):\n    return x * <<2||3>>",
        "return act(self.layer(x))",
    ),
    "jit.script function called by another": (
        "@torch.jit.script\ndef inner(x: torch.Tensor):\n    return x * <<2||3>>\n"
        "@torch.jit.script\ndef act(x: torch.Tensor):\n    return inner(x)",
        "return act(self.layer(x))",
    ),
    "compiled function": ("act = torch.compile(lambda x: x * <<2||3>>)", "return act(self.layer(x))"),
    "partial": (
        "def f(x, s): return x * s\nact = functools.partial(f, s=<<2||3>>)",
        "return act(self.layer(x))",
    ),
    "function of a partial": (
        "def f(x, s): return x * s * <<2||3>>\nact = functools.partial(f, s=1)",
        "return act(self.layer(x))",
    ),
    "partialmethod": (
        "class A:\n    def f(self, x, s): return x * s\n    g = functools.partialmethod(f, s=<<2||3>>)\na = A()",
        "return a.g(self.layer(x))",
    ),
    "decorator that wraps": (
        "def deco(f):\n    @functools.wraps(f)\n    def run(*a): return f(*a) * <<2||3>>\n    return run\n"
        "@deco\ndef act(x): return x",
        "return act(self.layer(x))",
    ),
    "argument of a decorator": (
        "def deco(s):\n    def take(f):\n        @functools.wraps(f)\n        def run(*a): return f(*a) * s\n"
        "        return run\n"
        "    return take\nS = <<2||3>>\n@deco(S)\ndef act(x): return x",
        "return act(self.layer(x))",
    ),
    "function inside a decorator that wraps": (
        "def deco(f):\n    @functools.wraps(f)\n    def run(*a): return f(*a)\n    return run\n"
        "@deco\ndef act(x): return x * <<2||3>>",
        "return act(self.layer(x))",
    ),
    "function inside a library's decorator": (
        "@torch.no_grad()\ndef scale(): return torch.tensor(<<2||3>>)",
        "return self.layer(x) * scale()",
    ),
    "singledispatch": (
        "@functools.singledispatch\ndef act(x): return x\n@act.register\ndef _(x: torch.Tensor): return x * <<2||3>>",
        "return act(self.layer(x))",
    ),
    "class attribute": ("class C:\n    S = <<2||3>>", "return self.layer(x) * C.S"),
    "class attribute set later": ("class C:\n    S = 1\nC.S = <<2||3>>", "return self.layer(x) * C.S"),
    "method set later": (
        "class C:\n    def f(self, x): return x\ndef g(self, x): return x * <<2||3>>\nC.f = g\nc = C()",
        "return c.f(self.layer(x))",
    ),
    "static method": ("class C:\n    @staticmethod\n    def f(x): return x * <<2||3>>", "return C.f(self.layer(x))"),
    "class method": ("class C:\n    @classmethod\n    def f(cls, x): return x * <<2||3>>", "return C.f(self.layer(x))"),
    "property": ("class C:\n    @property\n    def s(self): return <<2||3>>\nc = C()", "return self.layer(x) * c.s"),
    "cached property": (
        "class C:\n    @functools.cached_property\n    def s(self): return <<2||3>>\nc = C()",
        "return self.layer(x) * c.s",
    ),
    "descriptor": (
        "class D:\n    def __get__(self, o, k): return <<2||3>>\nclass C:\n    s = D()\nc = C()",
        "return self.layer(x) * c.s",
    ),
    "metaclass": (
        "class M(type):\n    def s(cls): return <<2||3>>\nclass C(metaclass=M): pass",
        "return self.layer(x) * C.s()",
    ),
    "parent of a class": (
        "class B:\n    def f(self, x): return x * <<2||3>>\nclass C(B): pass\nc = C()",
        "return c.f(self.layer(x))",
    ),
    "nested class": ("class C:\n    class D:\n        S = <<2||3>>", "return self.layer(x) * C.D.S"),
    "SimpleNamespace": (
        "import types\nC = types.SimpleNamespace(s=<<2||3>>)",
        "return self.layer(x) * C.s",
    ),
    "dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass K:\n    s: int = 1\nC = K(<<2||3>>)",
        "return self.layer(x) * C.s",
    ),
    "default of a dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass K:\n    s: int = <<2||3>>",
        "return self.layer(x) * K().s",
    ),
    "argparse.Namespace": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--s', default=<<2||3>>)\nC = p.parse_args([])",
        "return self.layer(x) * C.s",
    ),
    "pydantic model": (
        "import pydantic\nclass K(pydantic.BaseModel):\n    s: int = 1\nC = K(s=<<2||3>>)",
        "return self.layer(x) * C.s",
    ),
    "default of a pydantic model": (
        "import pydantic\nclass K(pydantic.BaseModel):\n    s: int = <<2||3>>",
        "return self.layer(x) * K().s",
    ),
    "enumeration": (
        "import enum\nclass E(enum.Enum):\n    A = <<2||3>>\n    B = 9",
        "return self.layer(x) * E.A.value",
    ),
    "member of an enumeration": (
        "import enum\nclass E(enum.Enum):\n    A = 2\n    B = 3\nC = E.<<A||B>>",
        "return self.layer(x) * C.value",
    ),
    "method of an enumeration": (
        "import enum\nclass E(enum.Enum):\n    A = 2\n    def f(self): return self.value * <<2||3>>",
        "return self.layer(x) * E.A.f()",
    ),
    "OrderedDict": (
        "import collections\nC = collections.OrderedDict(s=<<2||3>>)",
        "return self.layer(x) * C['s']",
    ),
    "defaultdict": (
        "import collections\nC = collections.defaultdict(int, s=<<2||3>>)",
        "return self.layer(x) * C['s']",
    ),
    "factory of a defaultdict": (
        "import collections\nC = collections.defaultdict(lambda: <<2||3>>)",
        "return self.layer(x) * C['s']",
    ),
    "namedtuple": (
        "import collections\nK = collections.namedtuple('K', 's')\nC = K(<<2||3>>)",
        "return self.layer(x) * C.s",
    ),
    "typing.NamedTuple": (
        "import typing\nclass K(typing.NamedTuple):\n    s: int = <<2||3>>\n    def f(self): return self.s\nC = K()",
        "return self.layer(x) * C.f()",
    ),
    "masked array": (
        "import numpy as np\nW = np.ma.masked_array([1.0, 2.0], [True, <<True||False>>])",
        "return self.layer(x) * W.sum()",
    ),
    "subclass of a tensor": (
        "class W(torch.Tensor):\n    def f(self): return self * <<2||3>>\nw = torch.ones(2).as_subclass(W)",
        "return self.layer(x) * w.f()",
    ),
    "sparse tensor": (
        "W = torch.tensor([1.0, <<0.0, 2.0||2.0, 0.0>>]).to_sparse()",
        "return self.layer(x) * W.to_dense().sum()",
    ),
    "slice": ("S = slice(0, <<1||2>>)", "return self.layer(x)[S]"),
    "subclass of a date": (
        "import datetime\nclass D(datetime.date): pass\nD1 = D(2020, 1, <<2||3>>)",
        "return self.layer(x) * D1.day",
    ),
    "namespace of a module": (
        "import layers\n",
        "return layers.__dict__['act'](self.layer(x))\n# file: layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "member of an enumeration that is a function": (
        "import enum\ndef f(x): return x * <<2||3>>\nclass E(enum.Enum):\n    F = enum.member(f)",
        "return E.F.value(self.layer(x))",
    ),
    "annotation of a pydantic model": (
        "import pydantic\nclass K(pydantic.BaseModel):\n    s: <<int||float>> = 1",
        "return self.layer(x) * K(s='1').s",
    ),
    "object that holds itself": (
        "class C: pass\nc = C()\nc.me = c\nc.s = <<2||3>>",
        "return self.layer(x) * c.me.me.s",
    ),
    "which of two objects": (
        "class C:\n    def __init__(self, s): self.s, self.child = s, D(self)\n"
        "class D:\n    def __init__(self, parent): self.parent = parent\n"
        "a, b = C(2), C(3)\nd = <<a||b>>.child",
        "return self.layer(x) * a.s * b.s * d.parent.s",
    ),
    "global beside an import of the same name": (
        "def act(x): return x * <<2||3>>\n",
        "def other(h):\n            from layers import act\n            return act(h)\n        return act(other(x))\n"
        "# file: layers.py\ndef act(x): return x\n",
    ),
    "one of two imports of the same name": (
        "",
        "def one(h):\n            from layers import act\n            return act(h)\n"
        "        def two(h):\n            from others import act\n            return act(h)\n"
        "        return two(one(x))\n"
        "# file: layers.py\ndef act(x): return x * <<2||3>>\n# file: others.py\ndef act(x): return x\n",
    ),
    "object as a special method": (
        "class F:\n    def __call__(self, x): return x * <<2||3>>\nclass C:\n    __call__ = F()\nc = C()",
        "return c(self.layer(x))",
    ),
    "constant in an enumeration": (
        "import enum\nclass E(enum.Enum):\n    A = 1\n    S = enum.nonmember(<<2||3>>)",
        "return self.layer(x) * E.S",
    ),
    "view of a dict": ("K = {'a': <<2||3>>}.values()", "return self.layer(x) * next(iter(K))"),
    "subclasses beside the class": (
        "class B: pass\nclass C(B):\n    s = <<2||3>>\n",
        "return self.layer(x) * B.__subclasses__()[0].s if B else x",
    ),
    "method of a dataclass made by exec": (
        "import dataclasses\nspace = {'dataclass': dataclasses.dataclass}\n"
        "exec('@dataclass\\nclass C:\\n    s: int = 1\\n    def __call__(self, x): return x * <<2||3>>', space)\n"
        "c = space['C']()",
        "return c(self.layer(x))",
    ),
    "class made by make_dataclass": (
        "import dataclasses\nK = dataclasses.make_dataclass('K', [('s', int, <<2||3>>)])",
        "return self.layer(x) * K().s",
    ),
    "import in the body of a class": (
        "",
        "class K:\n            from layers import act\n        return K.act(self.layer(x))\n"
        "# file: layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "relative import of a neighbour of the package": (
        "from pkg.sub.m import f\n",
        "return f(self.layer(x))\n# file: pkg/__init__.py\n# file: pkg/sub/__init__.py\n"
        "# file: pkg/sub/m.py\ndef f(x):\n    from ..layers import act\n    return act(x)\n"
        "# file: pkg/layers.py\ndef act(x): return x * <<2||3>>\n",
    ),
    "operator of one's own": (
        "@torch.library.custom_op('identity_test::scale', mutates_args=())\n"
        "def scale(x: torch.Tensor) -> torch.Tensor:\n    return x * <<2||3>>\n",
        "return scale(self.layer(x))",
    ),
    "vmap": ("act = torch.vmap(lambda x: x * <<2||3>>)", "return act(self.layer(x))"),
    "registry": (
        "R = {}\ndef register(f):\n    R[f.__name__] = f\n@register\ndef act(x): return x * <<2||3>>\n",
        "return R['act'](self.layer(x))",
    ),
    "special method": ("class S:\n    def __rmul__(self, x): return x + <<2||3>>\ns = S()", "return self.layer(x) * s"),
    "deque": ("import collections\nC = collections.deque([<<2||3>>])", "return self.layer(x) * C[0]"),
    "decimal": ("import decimal\nC = decimal.Decimal('<<2||3>>')", "return self.layer(x) * float(C)"),
    "itemgetter": ("import operator\nG = operator.itemgetter(<<0||1>>)", "return self.layer(x) * G((2, 3))"),
    "bound method of a dict": ("G = {'a': <<2||3>>}.get", "return self.layer(x) * G('a')"),
    "global module": ("M = nn.Dropout(<<0.1||0.2>>)", "return M(self.layer(x))"),
    "weights of a global module": (
        "M = nn.Linear(2, 2)\nnn.init.constant_(M.weight, <<2||3>>)\nnn.init.zeros_(M.bias)",
        "return M(self.layer(x))",
    ),
    "function set in a library": (
        "def mine(x): return x * <<2||3>>\nimport json\njson.mine = mine",
        "return json.mine(self.layer(x))",
    ),
    "context variable": (
        "import contextvars\nS = contextvars.ContextVar('s', default=<<2||3>>)",
        "return self.layer(x) * S.get()",
    ),
    "variable of a thread": (
        "import threading\nC = threading.local()\nC.s = <<2||3>>",
        "return self.layer(x) * C.s",
    ),
    "behind a weak reference": (
        "import weakref\nclass C: pass\nc = C()\nc.s = <<2||3>>\nR = weakref.ref(c)",
        "return self.layer(x) * R().s",
    ),
    "subclasses of a class": (
        "class B: pass\nclass C(B):\n    s = <<2||3>>\n",
        "return self.layer(x) * B.__subclasses__()[0].s",
    ),
    "decorator that is a class": (
        "class D:\n    def __init__(self, f):\n        functools.update_wrapper(self, f)\n        self.f = f\n"
        "    def __call__(self, x): return self.f(x)\n@D\ndef act(x): return x * <<2||3>>",
        "return act(self.layer(x))",
    ),
    "very long number": ("N = 10 ** 5000 + <<2||3>>", "return self.layer(x) * (N % 10)"),
    "generator function": ("def g():\n    yield <<2||3>>", "return self.layer(x) * next(g())"),
    "context manager": (
        "import contextlib\n@contextlib.contextmanager\ndef c():\n    yield <<2||3>>",
        "with c() as s:\n            return self.layer(x) * s",
    ),
    "autograd function": (
        "class F(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x): return x * <<2||3>>\n"
        "    @staticmethod\n    def backward(ctx, g): return g",
        "return F.apply(self.layer(x))",
    ),
    "loss": ("def loss(o, t): return (o * <<2||3>>).mean()", "return self.layer(x)"),
    "global of the loss": ("S = <<2||3>>\ndef loss(o, t): return (o * S).mean()", "return self.layer(x)"),
    "module as a loss": ("loss = nn.CrossEntropyLoss(label_smoothing=<<0.1||0.2>>)", "return self.layer(x)"),
    "weights of a loss": ("loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, <<2||3>>]))", "return self.layer(x)"),
    "metric": ("def metric(o, t): return (o * <<2||3>>).mean()", "return self.layer(x)"),
    "transform": (
        "class T:\n    def train(self, x, bits): return x * <<2||3>>\ntransform = T()",
        "return self.layer(x)",
    ),
    "state of a transform": (
        "class T:\n    def __init__(self, s): self.s = s\n    def train(self, x, bits): return x * self.s\n"
        "transform = T(<<2||3>>)",
        "return self.layer(x)",
    ),
}

MODELS: dict[str, str] = {
    "import inside the builder": (
        "def build():\n    import layers\n    return layers.Net()\n# file: layers.py\nimport torch\n"
        "from torch import nn\n"
        "class Net(nn.Linear):\n    def __init__(self): super().__init__(2, 2)\n"
        "    def forward(self, x): return super().forward(x) * <<2||3>>\n"
    ),
    "forward hook": (
        "def build():\n    m = nn.Linear(2, 2)\n    m.register_forward_hook(hook)\n    return m\n"
        "def hook(m, x, y): return y * <<2||3>>\n"
    ),
    "forward pre-hook": (
        "def build():\n    m = nn.Linear(2, 2)\n    m.register_forward_pre_hook(hook)\n    return m\n"
        "def hook(m, x): return x[0] * <<2||3>>\n"
    ),
    "hook with keywords": (
        "def build():\n    m = nn.Linear(2, 2)\n    m.register_forward_pre_hook(hook, with_kwargs=KW)\n    return m\n"
        "KW = <<True||False>>\ndef hook(m, *a): return None\n"
    ),
    "traced module": (
        "class Net(nn.Linear):\n    def forward(self, x): return act(x)\n"
        "@torch.fx.wrap\ndef act(x): return x * <<2||3>>\n"
        "def build(): return torch.fx.symbolic_trace(Net(2, 2))\n"
    ),
    "class of a parameter": (
        "class P(nn.Parameter):\n    def f(self): return self * <<2||3>>\n"
        "def build():\n    m = nn.Linear(2, 2)\n    m.weight = P(m.weight.data)\n    return m\n"
    ),
    "which module has the hook": (
        "def build():\n    m = nn.Sequential(nn.ReLU(), nn.ReLU())\n    m[WHICH].register_forward_hook(hook)\n"
        "    return m\n"
        "WHICH = <<0||1>>\ndef hook(m, x, y): return y * 2\n"
    ),
    "parametrization": (
        "from torch.nn.utils import parametrize\nclass P(nn.Module):\n    def forward(self, w): return w * <<2||3>>\n"
        "def build():\n    m = nn.Linear(2, 2)\n    parametrize.register_parametrization(m, 'weight', P())\n"
        "    return m\n"
    ),
    "library's parametrization": (
        "from torch.nn.utils import parametrizations\nDIM = <<0||1>>\n"
        "def build():\n    return parametrizations.weight_norm(nn.Linear(2, 2), dim=DIM)\n"
    ),
    "forward set on an instance": (
        "def build():\n    m = nn.Linear(2, 2)\n    m.forward = lambda x: x * <<2||3>>\n    return m\n"
    ),
    "scripted module": (
        "class Net(nn.Module):\n    def forward(self, x: torch.Tensor):\n        return x * <<2||3>>\n"
        "MADE = torch.jit.script(Net())\ndel Net\ndef build(): return MADE\n"
    ),
    "constant of a scripted module": (
        "class Net(nn.Module):\n    def __init__(self, s: float):\n        super().__init__()\n        self.s = s\n"
        "    def forward(self, x: torch.Tensor):\n        return x * self.s\n"
        "MADE = torch.jit.script(Net(<<2.0||3.0>>))\ndef build(): return MADE\n"
    ),
    "compiled module": (
        "class Net(nn.Linear):\n    def forward(self, x): return x * <<2||3>>\n"
        "def build(): return torch.compile(Net(2, 2))\n"
    ),
    "frozen weights": (
        "def build():\n    m = nn.Linear(2, 2)\n    m.weight.requires_grad_(FLAG)\n    return m\n"
        "FLAG = <<True||False>>\n"
    ),
    "one loaded weight": (
        "import pathlib\n"
        "def build():\n    m = nn.Linear(2, 2)\n"
        "    m.load_state_dict(torch.load(pathlib.Path(__file__).with_name('w')))\n"
        "    return m\n"
        "w = torch.tensor([[1.0, 2.0], [3.0, <<4.0||4.000001>>]])\n"
        "torch.save({'weight': w, 'bias': torch.zeros(2)}, pathlib.Path(__file__).with_name('w'))\n"
    ),
    "buffer": (
        "def build():\n    m = nn.Linear(2, 2)\n    m.register_buffer('b', made())\n    return m\n"
        "import pathlib\n"
        "def made(): return torch.tensor(float(pathlib.Path(__file__).read_text().split('NUMBER=')[-1]))\n"
        "# NUMBER=<<2||3>>\n"
    ),
    "buffer that is not saved": (
        "def build():\n    m = nn.Linear(2, 2)\n    m.register_buffer('b', made(), persistent=False)\n    return m\n"
        "import pathlib\n"
        "def made(): return torch.tensor(float(pathlib.Path(__file__).read_text().split('NUMBER=')[-1]))\n"
        "# NUMBER=<<2||3>>\n"
    ),
    "attribute of a module": (
        "class Net(nn.Linear):\n    def forward(self, x): return x * self.s\n"
        "def build():\n    m = Net(2, 2)\n    m.s = made()\n    return m\n"
        "import pathlib\ndef made(): return float(pathlib.Path(__file__).read_text().split('NUMBER=')[-1])\n"
        "# NUMBER=<<2||3>>\n"
    ),
    "module used twice": (
        "import pathlib\ndef build(): return nn.Sequential(*[nn.ReLU()] * times())\n"
        "def times(): return int(pathlib.Path(__file__).read_text().split('NUMBER=')[-1])\n# NUMBER=<<2||3>>\n"
    ),
    "tied weights": (
        "TIE = <<True||False>>\ndef build():\n    m = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))\n"
        "    m[1].load_state_dict(m[0].state_dict())\n    if TIE: m[1].weight = m[0].weight\n    return m\n"
    ),
    "module in a plain list": (
        "class Net(nn.Linear):\n    def forward(self, x): return self.hidden[0](x)\n"
        "def build():\n    m = Net(2, 2)\n    m.hidden = [nn.Dropout(P)]\n    return m\nP = <<0.1||0.2>>\n"
    ),
    "order of a sequence": (
        "def build(): return nn.Sequential(*ALL)\nALL = [<<nn.ReLU(), nn.Tanh()||nn.Tanh(), nn.ReLU()>>]\n"
    ),
    "builder that is a partial": (
        "def made(s):\n    m = nn.Linear(2, 2)\n    m.s = s\n    return m\nbuild = functools.partial(made, <<2||3>>)\n"
    ),
    "builder that is an object": (
        "class B:\n    def __init__(self, p): self.p = p\n    def __call__(self): return nn.Dropout(self.p)\n"
        "build = B(<<0.1||0.2>>)\n"
    ),
    "method patched on a library's class": (
        "class Mine(nn.Linear): pass\ndef forward(self, x): return x * <<2||3>>\nMine.forward = forward\n"
        "def build(): return Mine(2, 2)\n"
    ),
    "isotherm's model": (
        "from isotherm.models.ghost_batch_norm import GhostBatchNorm2d\n"
        "def build(): return GhostBatchNorm2d(4, ghost_size=SIZE)\nSIZE = <<2||4>>\n"
    ),
    "code made by exec": (
        "space = {}\nexec('def act(x): return x * <<2||3>>', space)\nact = space['act']\n"
        "class Net(nn.Linear):\n    def forward(self, x): return act(x)\ndef build(): return Net(2, 2)\n"
    ),
    "nested code made by exec": (
        "space = {}\nexec('def act(x):\\n    def f(): return <<2||3>>\\n    return x * f()', space)\n"
        "act = space['act']\n"
        "class Net(nn.Linear):\n    def forward(self, x): return act(x)\ndef build(): return Net(2, 2)\n"
    ),
    "class made by exec": (
        "space = {'nn': nn}\nexec('class Net(nn.Linear):\\n    def forward(self, x): return x * <<2||3>>', space)\n"
        "Net = space['Net']\ndef build(): return Net(2, 2)\n"
    ),
    "class made by type": (
        "Net = type('Net', (nn.Linear,), {'forward': lambda self, x: x * <<2||3>>})\ndef build(): return Net(2, 2)\n"
    ),
}
# Of the kinds that the first tests missed: state and code behind handlers of single types.
HIDDEN: dict[str, tuple[str, str]] = {
    "mode of a global module": ("T = nn.Dropout(0.5)\nT.<<eval||train>>()", "return T(self.layer(x))"),
    "mode of a module in a closure": (
        "T = nn.Sequential(nn.Dropout(0.5))\nT.<<eval||train>>()\ndef made(t):\n    return lambda h: t(h)\nf = made(T)",
        "return f(self.layer(x))",
    ),
    "dict that gives its items as attributes": (
        "class A(dict):\n    __getattr__ = dict.__getitem__\nC = A(s=<<2||3>>)",
        "return self.layer(x) * C.s",
    ),
    "regular expression": ("import re\nR = re.compile('<<2||3>>')", "return self.layer(x) * len(R.sub('', '223'))"),
    "binary format": ("import struct\nP = struct.Struct('<<2||3>>f')", "return self.layer(x) * P.size"),
    "weak proxy": (
        "import weakref\nclass V: pass\nK = V()\nK.s = <<2||3>>\nP = weakref.proxy(K)",
        "return self.layer(x) * P.s",
    ),
    "value set over a cached property": (
        "class C:\n    @functools.cached_property\n    def s(self): return 1\nC_ = C()\nC_.s = <<2||3>>",
        "return self.layer(x) * C_.s",
    ),
    "event": (
        "import threading\nE = threading.Event()\nE.<<set||clear>>()",
        "return self.layer(x) * (2 if E.is_set() else 3)",
    ),
    "what a logger adds": (
        "import logging\nLOG = logging.LoggerAdapter(logging.getLogger('a'), {'s': <<2||3>>})",
        "return self.layer(x) * LOG.extra['s']",
    ),
    "dict of weak values": (
        "import weakref\nclass V:\n    def __init__(self, v): self.v = v\n"
        "K = V(<<2||3>>)\nW = weakref.WeakValueDictionary(a=K)",
        "return self.layer(x) * W['a'].v",
    ),
    "dict of weak keys": (
        "import weakref\nclass V: pass\nK = V()\nW = weakref.WeakKeyDictionary()\nW[K] = <<2||3>>",
        "return self.layer(x) * W[K]",
    ),
    "class constant with a special name": (
        "class P:\n    __factor__ = <<2||3>>\nP_ = P()",
        "return self.layer(x) * P_.__factor__",
    ),
    "order of a class pattern": (
        "class P:\n    __match_args__ = (<<'a', 'b'||'b', 'a'>>)\n    a, b = 1, 2\nP_ = P()",
        "match P_:\n            case P(v, w): return self.layer(x) * v",
    ),
    "comparison of a dataclass": (
        "import dataclasses\n@dataclasses.dataclass(eq=<<True||False>>)\nclass C: s: int = 1\nC_ = C()",
        "return self.layer(x) * (2 if C_ == C() else 3)",
    ),
    "comparison of a field": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n"
        "    s: int = dataclasses.field(default=1, compare=<<True||False>>)\nC_ = C(1)",
        "return self.layer(x) * (2 if C_ == C(5) else 3)",
    ),
    "remark on a field": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n"
        "    s: int = dataclasses.field(default=1, metadata={'m': <<2||3>>})",
        "return self.layer(x) * dataclasses.fields(C)[0].metadata['m']",
    ),
    "user's kind of property": (
        "class P(property):\n    def __get__(self, o, k=None): return super().__get__(o, k) * <<2||3>>\n"
        "class C:\n    @P\n    def v(self): return 1\nC_ = C()",
        "return self.layer(x) * C_.v",
    ),
    "user's kind of cached property": (
        "class P(functools.cached_property):\n"
        "    def __get__(self, o, k=None): return super().__get__(o, k) * <<2||3>>\n"
        "class C:\n    @P\n    def v(self): return 1\nC_ = C()",
        "return self.layer(x) * C_.v",
    ),
    "user's kind of array": (
        "import numpy as np\nclass A(np.ndarray):\n    def s(self): return <<2||3>>\nA_ = np.zeros(2).view(A)",
        "return self.layer(x) * A_.s()",
    ),
    "attribute of a member of an enumeration": (
        "import enum\nclass K(enum.Enum):\n    A = 1\nK.A.scale = <<2||3>>",
        "return self.layer(x) * K.A.scale",
    ),
    "attribute of a member alone": (
        "import enum\nclass K(enum.Enum):\n    A = 1\nA = K.A\nA.scale = <<2||3>>",
        "return self.layer(x) * A.scale",
    ),
    "attribute of a cached function": (
        "@functools.lru_cache\ndef f(): return 1\nf.scale = <<2||3>>",
        "return self.layer(x) * f.scale",
    ),
    "attribute of a partial call": (
        "P = functools.partial(int, 1)\nP.scale = <<2||3>>",
        "return self.layer(x) * P.scale",
    ),
    "remark on a type": (
        "from typing import Annotated\nS = Annotated[float, <<2||3>>]",
        "return self.layer(x) * S.__metadata__[0]",
    ),
    "bound of a deque": (
        "import collections\nD = collections.deque([1, 1], maxlen=<<2||3>>)",
        "return self.layer(x) * D.maxlen",
    ),
    "registered class": (
        "import abc\nclass B(abc.ABC): pass\nclass X: pass\n<<B.register(X)||pass>>",
        "return self.layer(x) * (2 if issubclass(X, B) else 3)",
    ),
    "subclass found by a class method": (
        "class B:\n    @classmethod\n    def all(cls): return cls.__subclasses__()\nclass D(B): s = <<2||3>>",
        "return self.layer(x) * B.all()[0].s",
    ),
    "subclass of a subclass": (
        "class B: pass\nclass D(B): pass\nclass E(D): s = <<2||3>>",
        "return self.layer(x) * B.__subclasses__()[0].__subclasses__()[0].s",
    ),
    "globals by another name": ("import builtins\nS = <<2||3>>", "return self.layer(x) * builtins.globals()['S']"),
    "globals of a function": ("def act(v): return v\nS = <<2||3>>", "return self.layer(x) * act.__globals__['S']"),
    "validator of a field": (
        "from typing import Annotated\nfrom pydantic import AfterValidator, BaseModel\n"
        "class C(BaseModel):\n    s: Annotated[float, AfterValidator(lambda v: v * <<2||3>>)]",
        "return self.layer(x) * C(s=1.0).s",
    ),
    "module that answers to every name": (
        "import types\nM = types.ModuleType('m')\nM.__getattr__ = lambda name: <<2||3>>",
        "return self.layer(x) * M.scale",
    ),
}
CHANGES |= HIDDEN
CASES = {name: files_of(text + "\n" if text else "", forward) for name, (text, forward) in CHANGES.items()} | {
    name: files_of(text) for name, text in MODELS.items()
}


def test_there_are_enough_changes() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_a_change_shows_and_nothing_else_does(name: str, tmp_path: Path) -> None:
    one, other = (variant(CASES[name], which) for which in (0, 1))
    assert one != other
    first = parts_in(tmp_path / "one", one)
    assert parts_in(tmp_path / "again", one) == first
    assert parts_in(tmp_path / "other", other) != first


ONE_PART = {
    "code": "constant in forward",
    "weights": "one loaded weight",
    "loss": "loss",
    "metric": "metric",
    "settings": "transform",
}


@pytest.mark.parametrize("part", ONE_PART)
def test_a_change_shows_in_its_own_part_alone(part: str, tmp_path: Path) -> None:
    one, other = (parts_in(tmp_path / str(n), variant(CASES[ONE_PART[part]], n)) for n in (0, 1))
    assert [name for name in one if one[name] != other[name]] == [part]


# -- between two calls ----------------------------------------------------------------------------------------------

STATE = """
class C:
    S = 2
    def f(self, x): return x * self.S
class T:
    def train(self, x, bits): return x * W[0]
c = C()
C_LIST = [1, 2]
W = torch.ones(2)
def act(x, s=2): return x * s
def loss(o, t): return (o * W).mean()
transform = T()
"""
IN_PLACE = {
    "list": "C_LIST.append(3)",
    "tensor": "W.add_(1)",
    "attribute of an object": "c.s = 3",
    "attribute of a class": "C.S = 3",
    "method": "C.f = lambda self, x: x * 3",
    "function": "act = lambda x: x * 3",
    "code of a function": "act.__code__ = (lambda x, s=2: x * s * 3).__code__",
    "defaults of a function": "act.__defaults__ = (3,)",
    "new global": "MISSING = 3",
    "forward": "Net.forward = lambda self, x: x",
    "function of PyTorch": "nn.functional.linear = lambda x, w, b=None: x",
    "method of PyTorch": "nn.Linear.forward = lambda self, x: x",
    "hook of every module": "HANDLE = nn.modules.module.register_module_forward_hook(lambda m, x, y: y * 2)",
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_change_between_two_calls_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for home, patched in ((nn.functional, "linear"), (nn.Linear, "forward")):
        monkeypatch.setattr(home, patched, getattr(home, patched))  # put back afterwards
    files = files_of(STATE, "return c.f(act(self.layer(x))) * C_LIST[0] * W * (MISSING if c is None else 1)")
    with imported(write(files, tmp_path)) as module:
        before = parts_of(module)
        assert parts_of(module) == before
        exec(IN_PLACE[name], vars(module))
        changed = parts_of(module)
        if name.startswith("hook"):
            module.HANDLE.remove()
            assert parts_of(module) == before
    assert changed != before


# -- changes to a library -------------------------------------------------------------------------------------------

PLAIN = "return self.layer(x)"
# name -> (home, name in it, two values, body of forward); a library's own functions stand in place of others
LIBRARY: dict[str, tuple[Any, str, tuple[Any, Any], str]] = {
    "function that a layer calls": (nn.functional, "gelu", (torch.tanh, torch.relu), PLAIN),
    "function that forward calls": (nn.functional, "elu", (torch.tanh, torch.relu), "return nn.functional.elu(x)"),
    "partial call": (
        nn.functional,
        "softplus",
        tuple(functools.partial(nn.functional.softplus, beta=beta) for beta in (2, 3)),
        PLAIN,
    ),
    "method of another layer": (nn.Linear, "forward", (nn.ReLU.forward, nn.Tanh.forward), PLAIN),
    "value on a layer": (nn.Linear, "my_scale", (2, 3), "return self.layer(x) * self.layer.my_scale"),
    "property on a layer": (nn.Linear, "my_scale", (property(lambda self: 2), property(lambda self: 3)), PLAIN),
    "method of a tensor": (torch.Tensor, "my_act", (torch.Tensor.tanh, torch.Tensor.relu), "return x.my_act()"),
    "partial method of a tensor": (
        torch.Tensor,
        "my_act",
        tuple(functools.partialmethod(torch.Tensor.mul, scale) for scale in (2, 3)),
        "return x.my_act()",
    ),
    "value in torch": (torch, "my_scale", (2, 3), "return self.layer(x) * torch.my_scale"),
    "value in sys": (sys, "my_scale", (2, 3), "import sys\n        return self.layer(x) * sys.my_scale"),
    "flag of a backend": (
        torch.backends.cudnn,
        "benchmark",
        (True, False),
        "return x * 2 if torch.backends.cudnn.benchmark else x",
    ),
}


@pytest.mark.parametrize("name", LIBRARY)
def test_a_change_to_a_library_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, attribute, values, forward = LIBRARY[name]
    with imported(write(files_of("", forward), tmp_path)) as module:
        before, found = parts_of(module), []
        for value in values:
            with monkeypatch.context() as patch:
                patch.setattr(home, attribute, value, raising=False)
                found.append(parts_of(module))
        assert found[0] != found[1]
        assert parts_of(module) == before


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package with a configuration object, as libraries for experiments have one."""
    folder = write(
        {"settings_pkg.py": "class C(dict):\n    __getattr__ = dict.__getitem__\nconfig = C(s=2, t=2)\n"},
        tmp_path / "site-packages",
    )
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("settings_pkg", None)


@pytest.mark.parametrize(
    ("text", "forward"),
    [
        ("import settings_pkg", "return self.layer(x) * settings_pkg.config.s"),
        ("import settings_pkg", "return self.layer(x) * settings_pkg.config['s']"),
        ("from settings_pkg import config", "return self.layer(x) * config.s"),
        ("", "from settings_pkg import config\n        return self.layer(x) * config.s"),
    ],
)
def test_the_configuration_in_an_installed_package_shows(
    text: str, forward: str, tmp_path: Path, installed: Path
) -> None:
    with imported(write(files_of(text, forward), tmp_path)) as module:
        import settings_pkg

        before = parts_of(module)
        settings_pkg.config["s"] = 3
        assert parts_of(module) != before
        settings_pkg.config["s"] = 2
        assert parts_of(module) == before


def test_what_is_not_read_of_a_configuration_does_not_show(tmp_path: Path, installed: Path) -> None:
    forward = "return self.layer(x) * settings_pkg.config.s"
    with imported(write(files_of("import settings_pkg", forward), tmp_path)) as module:
        before = parts_of(module)
        module.settings_pkg.config["t"] = 3
        assert parts_of(module) == before
