"""What the numbers depend on and no hash can cover is named, with its place and the remedy."""

import _testcapi
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch

from helpers_identity import files_of, imported, parts_of, write
from isotherm.errors import UnseenWarning

# name -> (text before the model, body of forward, what the warning says)
UNSEEN: dict[str, tuple[str, str, str]] = {
    "open": ("", "return self.layer(x) * len(open('a').read())", r"Net.forward \(net.py, line \d+\).*file.*open"),
    "open in a helper": (
        "def f(): return open('a')",
        "return self.layer(x) if f() else x",
        r"f \(net.py, line 4\).*open",
    ),
    "open under another name": (
        "o = open",
        "return self.layer(x) if o('a') else x",
        r"forward.*content of a file.*\bo\b",
    ),
    "environment": ("import os", "return self.layer(x) * int(os.environ['S'])", "environment variable.*os.environ"),
    "getenv": ("from os import getenv", "return self.layer(x) * int(getenv('S'))", "environment variable.*getenv"),
    "read_text": ("import pathlib\nP = pathlib.PurePath('a')", "return x * len(P.read_text())", r"file.*read_text\(\)"),
    "read_bytes": ("", "return self.layer(x) * len(x.read_bytes())", r"file.*read_bytes\(\)"),
    "open of a path": ("", "return self.layer(x) * len(x.open())", r"file.*\.open\(\)"),
    "numpy.load": ("import numpy as np", "return self.layer(x) * np.load('a')", "file.*numpy.load"),
    "torch.load": ("", "return self.layer(x) * torch.load('a')", "file.*torch.load"),
    "json.load": ("import json", "return self.layer(x) * json.load(x)", "file.*json.load"),
    "import of json.load inside forward": ("", "from json import load\n        return x * load(x)", "file.*json.load"),
    "exec": ("", "exec('y = 2')\n        return self.layer(x)", "code put together.*exec"),
    "eval": ("", "return self.layer(x) * eval('2')", "code put together.*eval"),
    "import_module": (
        "import importlib",
        "return importlib.import_module('a').f(x)",
        "code put together.*import_module",
    ),
    "time": ("import time", "return self.layer(x) * time.time()", "clock.*time.time"),
    "datetime": ("from datetime import datetime as d", "return self.layer(x) * d.now().hour", "clock.*through d"),
    "command line": ("import sys", "return self.layer(x) * len(sys.argv)", "command line.*sys.argv"),
    "working directory": ("import os", "return self.layer(x) * len(os.getcwd())", "working directory.*os.getcwd"),
    "another program": ("import subprocess", "return x if subprocess.run(['a']) else x", "program.*subprocess.run"),
    "file in a global": (
        "import sys\nIN = sys.__stdin__",
        "return x * len(IN.read())",
        r"Net.forward \(net.py, line \d+\) depends on the state of a _io.TextIOWrapper",
    ),
    "generator in a global": (
        "G = (n for n in (1, 2))",
        "return self.layer(x) * next(G)",
        "state of a builtins.generator",
    ),
    "iterator in a global": ("I = iter([1, 2])", "return self.layer(x) * next(I)", "state of a builtins.list_iterator"),
    "random generator in a global": (
        "import random\nR = random.Random(1)",
        "return self.layer(x) * R.random()",
        "state of a random.Random",
    ),
    "custom operator": ("", "return torch.ops.mine.act(self.layer(x))", "compiled code.*mine"),
    "loss": (
        "def loss(o, t): return (o * len(open('a').read())).mean()",
        "return self.layer(x)",
        r"loss \(.*file.*open",
    ),
    "metric": (
        "def metric(o, t): return (o * len(open('a').read())).mean()",
        "return self.layer(x)",
        r"metric \(.*open",
    ),
    "transform": (
        "class T:\n    def train(self, x, bits): return x * len(open('a').read())\ntransform = T()",
        "return self.layer(x)",
        r"T.train \(.*open",
    ),
    "constructor in forward": (
        "class C:\n    def __init__(self): self.s = len(open('a').read())",
        "return self.layer(x) * C().s",
        r"C.__init__ \(.*open",
    ),
}
SEEN: dict[str, tuple[str, str]] = {
    "builder reads a file": (
        "import pathlib\ndef build():\n    m = nn.Linear(2, 2)\n    m.s = len(pathlib.Path(__file__).read_text())\n"
        "    return m\n",
        "",
    ),
    "constructor of the model reads a file": (
        "class Net(nn.Linear):\n    def __init__(self):\n        super().__init__(2, 2)\n"
        "        with open(__file__) as f:\n            self.s = len(f.read())\ndef build(): return Net()\n",
        "",
    ),
    "constructor of a global object": (
        "class C:\n    def __init__(self):\n        with open(__file__) as f: self.s = len(f.read())\nC = C()",
        "return self.layer(x) * C.s",
    ),
    "logger": ("import logging\nLOG = logging.getLogger('a')", "LOG.info('')\n        return self.layer(x)"),
    "lock": ("import threading\nL = threading.Lock()", "with L:\n            return self.layer(x)"),
    "model.eval": ("", "self.layer.eval()\n        return self.layer(x)"),
    "library's function": ("from torch.nn import functional as F", "return F.relu(self.layer(x))"),
    "string formatting": ("import json", "json.dumps({})\n        return self.layer(x)"),
}


@pytest.fixture(autouse=True)
def operator():
    library = torch.library.Library("mine", "FRAGMENT")
    library.define("act(Tensor x) -> Tensor")
    yield
    library._destroy()


def warned(files: dict[str, str], folder: Path) -> list[str]:
    with imported(write(files, folder)) as module, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        parts_of(module)
    assert all(issubclass(warning.category, UnseenWarning) for warning in found)
    return [str(warning.message) for warning in found]


@pytest.mark.parametrize("name", UNSEEN)
def test_what_cannot_be_seen_is_named(name: str, tmp_path: Path) -> None:
    text, forward, said = UNSEEN[name]
    messages = warned(files_of(text + "\n", forward), tmp_path)
    assert len(messages) == 1, messages
    assert re.search(said, messages[0]), messages
    assert "set version='...' on the task, and change it whenever that changes" in messages[0]


@pytest.mark.parametrize("name", SEEN)
def test_what_is_seen_or_means_nothing_is_not_warned_of(name: str, tmp_path: Path) -> None:
    text, forward = SEEN[name]
    assert warned(files_of(text + "\n", forward), tmp_path) == []


def test_compiled_code_that_is_not_a_librarys_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(_testcapi.__file__, tmp_path / Path(_testcapi.__file__).name)
    monkeypatch.delitem(sys.modules, "_testcapi")
    messages = warned(files_of("import _testcapi\n", "return _testcapi.test_config() or self.layer(x)"), tmp_path)
    assert len(messages) == 1
    assert "compiled code through _testcapi.test_config" in messages[0]
