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
# what forward calls -> (imports, what the warning says)
CALLED: dict[str, tuple[str, str]] = {
    "codecs.open('a')": ("import codecs", "file.*codecs.open"),
    "io.open('a')": ("import io", "file.*io.open"),
    "gzip.open('a')": ("import gzip", "file.*gzip.open"),
    "bz2.open('a')": ("import bz2", "file.*bz2.open"),
    "lzma.open('a')": ("import lzma", "file.*lzma.open"),
    "shelve.open('a')": ("import shelve", "file.*shelve.open"),
    "os.listdir()": ("import os", "file.*os.listdir"),
    "os.scandir()": ("import os", "file.*os.scandir"),
    "os.stat('a')": ("import os", "file.*os.stat"),
    "os.path.exists('a')": ("import os", "file.*os.path.exists"),
    "os.path.getmtime('a')": ("import os", "file.*os.path.getmtime"),
    "ET.parse('a')": ("import xml.etree.ElementTree as ET", "file.*ElementTree.parse"),
    "get_data('a', 'b')": ("from pkgutil import get_data", "file.*get_data"),
    "R.read_text('a', 'b')": ("import importlib.resources as R", "file.*importlib.resources.read_text"),
    "R.files('a')": ("import importlib.resources as R", "file.*importlib.resources.files"),
    "np.lib.format.open_memmap('a')": ("import numpy as np", "file.*open_memmap"),
    "np.memmap('a')": ("import numpy as np", "file.*numpy.memmap"),
    "np.fromfile('a')": ("import numpy as np", "file.*numpy.fromfile"),
    "np.loadtxt('a')": ("import numpy as np", "file.*numpy.loadtxt"),
    "np.genfromtxt('a')": ("import numpy as np", "file.*numpy.genfromtxt"),
    "pickle.load(x)": ("import pickle", "file.*pickle.load"),
    "csv.reader(x)": ("import csv", "file.*csv.reader"),
    "sqlite3.connect('a')": ("import sqlite3", "file.*sqlite3.connect"),
    "tomllib.load(x)": ("import tomllib", "file.*tomllib.load"),
    "torch.serialization.load('a')": ("", "file.*torch.load"),
    "Path('a').exists()": ("from pathlib import Path", r"file.*\.exists\(\)"),
    "pathlib.Path('a').stat()": ("import pathlib", r"file.*\.stat\(\)"),
    "P.iterdir()": ("import pathlib\nP = pathlib.Path('a')", r"file.*\.iterdir\(\)"),
    "P.glob('*')": ("import pathlib\nP = pathlib.Path('a')", r"file.*\.glob\(\)"),
    "P.rglob('*')": ("import pathlib\nP = pathlib.Path('a')", r"file.*\.rglob\(\)"),
    "P['a'].is_file()": ("import pathlib\nP = {'a': pathlib.Path('a')}", r"file.*\.is_file\(\)"),
    "Path.is_dir('a')": ("from pathlib import Path", r"file.*\.is_dir\(\)"),
    "E()": ("import pathlib\nE = pathlib.Path('a').exists", "file.*Path.exists"),
    "configparser.ConfigParser().read('a')": ("import configparser", r"file.*\.read\(\)"),
    "C.read_file(x)": ("import configparser\nC = configparser.ConfigParser", r"file.*\.read_file\(\)"),
    "O()": ("O = functools.partial(open, 'a')", r"Net.forward \(net.py, line 12\).*file.*through open"),
    "T['a']('a')": ("T = {'a': open}", r"Net.forward \(net.py, line 12\).*file.*through open"),
    "D('a')": ("def D(a, o=[open]): return o[0](a)", r"D \(net.py, line 4\).*file.*through open"),
    "os.environ.get('a')": ("import os", "environment.*os.environ"),
    "getattr(os, 'environ')['a']": ("import os", "environment.*os.environ"),
    "getattr(os, N)['a']": ("import os\nN = 'environ'", "environment.*os.environ"),
    "M('a')": ("import os\ndef M(a, o=os): m = os; return m.listdir(a)", r"M \(net.py, line 5\).*os.listdir"),
    "H.exists()": ("import pathlib\nclass H: path = pathlib.Path('a')", r"file.*\.exists\(\)"),
    "S.pop()()": ("import os\nS = {os.getpid}", "machine.*os.getpid"),
    "getattr(random, 'gauss')(0, 1)": ("import random", "chance.*random.gauss"),
    "K('a')": ("K = functools.lru_cache(open)", "file.*through open"),
    "os.__dict__['environ']['a']": ("import os", "environment.*os.environ"),
    "os.environb[b'a']": ("import os", "environment.*os.environb"),
    "environ['a']": ("from os import environ", "environment.*environ"),
    "T['a']['b']": ("import os\nT = {'a': os.environ}", "environment.*os.environ"),
    "G('a')": ("import os\nG = os.environ.get", "environment.*os.environ"),
    "os.urandom(1)": ("import os", "chance.*os.urandom"),
    "uuid.uuid4()": ("import uuid", "chance.*uuid.uuid4"),
    "secrets.randbelow(3)": ("import secrets", "chance.*secrets.randbelow"),
    "token_bytes(3)": ("from secrets import token_bytes", "chance.*token_bytes"),
    "random.random()": ("import random", "chance.*random.random"),
    "choice([1])": ("from random import choice", "chance.*choice"),
    "T[0]()": ("import random\nT = [random.random]", "chance.*random.random"),
    "np.random.rand()": ("import numpy as np", "chance.*numpy.random.rand"),
    "rand()": ("from numpy.random import rand", "chance.*rand"),
    "os.getpid()": ("import os", "machine.*os.getpid"),
    "os.cpu_count()": ("import os", "machine.*os.cpu_count"),
    "socket.gethostname()": ("import socket", "machine.*socket.gethostname"),
    "platform.machine()": ("import platform", "machine.*platform.machine"),
    "threading.get_ident()": ("import threading", "machine.*threading.get_ident"),
    "locale.getlocale()": ("import locale", "machine.*locale.getlocale"),
    "torch.cuda.is_available()": ("", "machine.*torch.cuda.is_available"),
    "torch.cuda.device_count()": ("", "machine.*torch.cuda.device_count"),
    "time.perf_counter()": ("import time", "clock.*time.perf_counter"),
    "datetime.date.today()": ("import datetime", "clock.*datetime.date.today"),
    "N()": ("from datetime import datetime\nN = datetime.now", "clock.*datetime.now"),
    "subprocess.check_output('a')": ("import subprocess", "program.*check_output"),
    "urlretrieve('a')": ("from urllib.request import urlretrieve", "program.*urlretrieve"),
    "requests.get('a')": ("import requests", "program.*requests.get"),
    "L.getpid()": ("import ctypes\nL = ctypes.CDLL(None)", "compiled code.*ctypes.CDLL"),
    "F()": ("import ctypes\nF = ctypes.CDLL(None).getpid", "compiled code.*FuncPtr"),
    "ctypes.CDLL('a').f()": ("import ctypes", "compiled code.*ctypes.CDLL"),
}
# packages that need not be installed: forward imports them
NOT_LOADED = {
    "import pandas; pandas.read_csv('a')": "file.*pandas.read_csv",
    "import h5py; h5py.File('a')": "file.*h5py.File",
    "from safetensors.torch import load_file; load_file('a')": "file.*safetensors.torch.load_file",
    "import cffi; cffi.FFI()": "compiled code.*cffi.FFI",
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
    "builder reads a table of functions": (
        "T = {'a': open}\ndef build():\n    with T['a'](__file__) as f:\n        m = nn.Linear(len(f.read()), 2)\n"
        "    return m\n",
        "",
    ),
    "torch and numpy": (
        "import math\nimport numpy as np\nfrom torch.nn import functional as F\nACTS = {'a': F.relu, 'b': torch.tanh}\n"
        "G = functools.partial(F.dropout, p=0.1)",
        "y = ACTS['a'](self.layer(x)) + torch.rand(2) + torch.randn_like(x) * math.sqrt(2) * np.exp(1.0) + np.pi\n"
        "        y = G(y, training=self.training).to(x.device) @ torch.eye(2, dtype=getattr(torch, 'float32'))\n"
        "        return F.layer_norm(torch.cat([y, torch.einsum('ij->ij', y)]), (2,)).sum().exp().clamp(max=1)",
    ),
    "modules of torch": (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = nn.Sequential("
        "nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GELU(), nn.Dropout(), nn.Flatten())\n"
        "        self.b = nn.TransformerEncoderLayer(4, 2, activation=nn.functional.gelu)\n"
        "        self.c = nn.LSTM(2, 2)\n        self.d = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))\n"
        "    def forward(self, x): return self.d(self.c(self.b(self.a(x)))[0])\ndef build(): return Net()\n",
        "",
    ),
    "methods of the same names": (
        "class Memory:\n    def read(self, x): return x\n    def exists(self): return True\n"
        "    def stat(self): return 2\nM = Memory()",
        "return self.layer(M.read(x)) * M.exists() * M.stat()",
    ),
    "a path that is not read": (
        "import pathlib\nP = pathlib.PurePath('a')",
        "return self.layer(x) * len(P.name) * len((P / 'b').parts)",
    ),
    "a function of torch by its name": (
        "ACT = 'relu'",
        "self.layer.load = None\n        self.layer.load\n        return getattr(torch, ACT)(self.layer(x))",
    ),
    "decorators and transforms of torch": (
        "from torch.func import vmap\nfrom torch.utils.checkpoint import checkpoint\n"
        "@torch.no_grad()\ndef f(x): return x * 2",
        "return vmap(torch.relu)(checkpoint(self.layer, f(x), use_reentrant=False))",
    ),
    "a module as a whole": ("import math", "return self.layer(x) * getattr(math, 'pi')"),
    "generator made from a seed": (
        "import random\nimport numpy as np",
        "return self.layer(x) * random.Random(1).random() * np.random.default_rng(1).random()",
    ),
    "a module whose functions are external": (
        "import random",
        "'''A text.'''\n        return self.layer(x) * isinstance(random, type) * len('other')",
    ),
    "method without a name": (
        "import types\nM = types.MethodType(functools.partial(torch.mul), torch.ones(1))",
        "return self.layer(M(x))",
    ),
    "sleep": ("import time", "time.sleep(0)\n        return self.layer(x)"),
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


@pytest.mark.parametrize("call", CALLED)
def test_what_forward_calls_is_named(call: str, tmp_path: Path) -> None:
    text, said = CALLED[call]
    messages = warned(files_of(text + "\n", f"return self.layer(x) if {call} else x"), tmp_path)
    assert len(messages) == 1, messages
    assert re.search(said, messages[0]), messages
    assert re.search(r"^[\w.]+ \(net.py, line \d+\) depends on .*set version=", messages[0]), messages


@pytest.mark.parametrize("call", NOT_LOADED)
def test_what_forward_imports_and_calls_is_named(call: str, tmp_path: Path) -> None:
    """Without the package, a stand-in in its place."""
    package = re.split(r"[ ;]", call)[1]
    stand_in = "".join(f"{name} = None\n" for name in ("read_csv", "File", "load_file", "FFI"))
    folder = tmp_path / "site-packages"
    path = package.replace(".", "/")
    files = {f"{path.partition('/')[0]}/__init__.py": stand_in, f"{path}{'/__init__' * ('/' not in path)}.py": stand_in}
    write(files, folder)
    sys.path.insert(0, str(folder))
    try:
        messages = warned(files_of("", f"{call}\n        return self.layer(x)"), tmp_path)
    finally:
        sys.path.remove(str(folder))
    assert len(messages) == 1, messages
    assert re.search(NOT_LOADED[call], messages[0]), messages


def test_something_external_that_the_model_holds_is_named(tmp_path: Path) -> None:
    text = "def build():\n    m = nn.Linear(2, 2)\n    m.loader = torch.load\n    return m\n"
    messages = warned(files_of(text), tmp_path)
    assert len(messages) == 1, messages
    assert "the model depends on the content of a file through torch.load" in messages[0]


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
