"""What is external to a program, and the names under which Python code gets at it."""

from __future__ import annotations

import configparser
import ctypes
import datetime
import pathlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from isotherm.tasks.identity import origin
from isotherm.tasks.identity.reads import Read, attributes_in
from isotherm.tasks.identity.source import codes_within

_FILE = "the content of a file"
_CHANCE = "chance"
_CLOCK = "the clock"
_MACHINE = "the machine it runs on"
_COMPILED = "compiled code"
_EXTERNAL: dict[str, dict[str, str]] = {  # what -> module -> names in it
    _FILE: {
        "builtins": "open",
        "io": "open FileIO",
        "codecs": "open",
        "os": "open fdopen read listdir scandir stat lstat fstat access readlink walk fwalk",
        "os.path": "exists lexists isfile isdir islink getsize getmtime getatime getctime samefile realpath",
        "glob": "glob iglob",
        "mmap": "mmap",
        "shutil": "which disk_usage",
        "filecmp": "cmp",
        "gzip": "open GzipFile",
        "bz2": "open BZ2File",
        "lzma": "open LZMAFile",
        "tarfile": "open TarFile",
        "zipfile": "ZipFile",
        "linecache": "getline getlines",
        "fileinput": "input FileInput",
        "json": "load",
        "tomllib": "load",
        "pickle": "load Unpickler",
        "marshal": "load",
        "plistlib": "load",
        "csv": "reader DictReader",
        "shelve": "open",
        "dbm": "open",
        "sqlite3": "connect",
        "xml.etree.ElementTree": "parse iterparse",
        "xml.dom.minidom": "parse",
        "pkgutil": "get_data",
        "importlib.resources": "read_text read_binary open_text open_binary files path contents is_resource",
        "numpy": "load loadtxt genfromtxt fromfile fromregex memmap DataSource",
        "numpy.lib.format": "open_memmap read_array",
        "torch": "load from_file",
        "torch.jit": "load",
        "torch.export": "load",
        "torch.hub": "load load_state_dict_from_url",
        "torch.ops": "load_library",
        "PIL.Image": "open",
        "h5py": "File is_hdf5",
        "zarr": "open load",
        "yaml": "load safe_load full_load",
        "joblib": "load",
        "cloudpickle": "load",
        "dill": "load",
        "orjson": "load",
        "msgpack": "load",
        "toml": "load",
        "pandas": (
            "read_csv read_parquet read_json read_excel read_hdf read_pickle read_feather read_table read_fwf "
            "read_sql read_html read_xml read_orc read_stata read_sas read_spss HDFStore ExcelFile"
        ),
        "polars": "read_csv read_parquet scan_csv scan_parquet",
        "pyarrow.parquet": "read_table",
        "safetensors": "safe_open",
        "safetensors.torch": "load_file load_model",
        "safetensors.numpy": "load_file",
        "scipy.io": "loadmat mmread",
        "scipy.io.wavfile": "read",
        "scipy.sparse": "load_npz",
        "imageio": "imread",
        "imageio.v2": "imread",
        "imageio.v3": "imread",
        "cv2": "imread",
        "torchvision.io": "read_image read_file",
        "torchaudio": "load",
    },
    "an environment variable": {
        "os": "environ environb getenv getenvb",
        "os.path": "expandvars expanduser",
    },
    "the command line": {
        "sys": "argv orig_argv stdin",
        "builtins": "input",
        "getpass": "getpass",
    },
    "the working directory": {
        "os": "getcwd getcwdb",
        "os.path": "abspath",
    },
    _CLOCK: {
        "time": (
            "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns "
            "thread_time thread_time_ns clock_gettime clock_gettime_ns localtime gmtime ctime asctime strftime"
        ),
        "os": "times",
        "timeit": "default_timer",
    },
    _CHANCE: {
        "os": "urandom getrandom",
        "uuid": "uuid1 uuid4",
        "random": "SystemRandom _inst",
        "numpy.random.mtrand": "_rand",
        "ssl": "RAND_bytes",
        "tempfile": "mkdtemp mkstemp mktemp NamedTemporaryFile",
    },
    _MACHINE: {
        "os": (
            "cpu_count process_cpu_count sched_getaffinity getloadavg uname getpid getppid getuid geteuid getgid "
            "getlogin sysconf get_terminal_size"
        ),
        "shutil": "get_terminal_size",
        "uuid": "getnode",
        "getpass": "getuser",
        "socket": "gethostname getfqdn gethostbyname getaddrinfo",
        "threading": "get_ident get_native_id active_count current_thread enumerate",
        "multiprocessing": "cpu_count current_process",
        "resource": "getrusage",
        "locale": "getlocale getdefaultlocale getpreferredencoding getencoding localeconv",
        "tempfile": "gettempdir",
        "psutil": "cpu_count virtual_memory cpu_percent Process",
        "torch.cuda": (
            "is_available device_count current_device get_device_name get_device_capability get_device_properties "
            "mem_get_info memory_allocated memory_reserved is_bf16_supported"
        ),
        "torch.backends.mps": "is_available",
        "torch.backends.cudnn": "version is_available",
        "torch.backends.mkldnn": "is_available",
        "torch.xpu": "is_available device_count",
        "torch": "get_num_threads get_num_interop_threads",
        "torch.accelerator": "is_available device_count current_accelerator",
        "torch.distributed": "get_rank get_world_size",
    },
    "code put together at run time": {
        "builtins": "exec eval compile __import__",
        "importlib": "import_module __import__",
        "runpy": "run_path run_module",
        "sys": "modules",
    },
    "the answer of another program": {
        "subprocess": "run Popen check_output check_call call getoutput getstatusoutput",
        "os": "system popen spawnv posix_spawn",
        "urllib.request": "urlopen urlretrieve build_opener",
        "http.client": "HTTPConnection HTTPSConnection",
        "ftplib": "FTP",
        "requests": "get post put head request Session session",
        "httpx": "get post Client",
        "socket": "socket create_connection",
        "torch.hub": "download_url_to_file",
    },
    _COMPILED: {
        "ctypes": "CDLL PyDLL cdll pydll pythonapi",
        "ctypes.util": "find_library",
        "cffi": "FFI",
        "torch.utils.cpp_extension": "load load_inline",
    },
}
_BY_NAME = {
    f"{module}.{name}": (what, f"{module}.{name}")
    for what, modules in _EXTERNAL.items()
    for module, names in modules.items()
    for name in names.split()
}
# Every function of these modules is external, but for those listed below.
_MODULES = {"random": _CHANCE, "numpy.random": _CHANCE, "secrets": _CHANCE, "platform": _MACHINE}
_HARMLESS = {"numpy.random.default_rng", "numpy.random.test", "secrets.compare_digest"}
_METHODS = {"read_text": _FILE, "read_bytes": _FILE, "open": _FILE}
# Methods with names that other classes have too: they count where training gets at an object of the class.
_PATH = "exists stat lstat iterdir glob rglob walk is_file is_dir is_symlink is_mount resolve readlink samefile owner"
_METHODS_OF: dict[type, frozenset[str]] = {
    pathlib.PurePath: frozenset(_PATH.split()),
    configparser.RawConfigParser: frozenset(("read", "read_file")),
}
_OF_CLASSES: dict[tuple[type, str], str] = {
    **{(datetime.datetime, name): _CLOCK for name in ("now", "utcnow", "today")},
    (datetime.date, "today"): _CLOCK,
    (pathlib.Path, "cwd"): "the working directory",
    (pathlib.Path, "home"): "an environment variable",
}
FOREIGN: tuple[type, ...] = (ctypes.CDLL, ctypes._CFuncPtr)  # type: ignore[attr-defined]
_FOREIGN_MODULES = {"_cffi_backend", "cffi.api"}
_PLAIN = (str, bytes, int, float, type(None))
Found = tuple[int | None, str, type | None]  # the line, what it is, and the class that must be met for it to count


class ExternalNames:
    """Names through which code depends on something external, and what they stand for as far as it is loaded."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[str, str]] = {}
        for name, thing in _loaded():
            self._by_id.setdefault(id(thing), _BY_NAME[name])
        for name, thing in _functions(_MODULES):
            self._by_id.setdefault(id(thing), (_MODULES[name.rpartition(".")[0]], name))

    def found_in(self, function: types.FunctionType, reads: list[Read]) -> Iterator[Found]:
        """Yield what a function's own code depends on."""
        for read in reads:
            found = self._of_read(read)
            if found is not None:
                yield read.line, found, None
        resolved = {(read.line, read.path.rpartition(".")[2]) for read in reads}
        taken = [(name, line) for name, line in attributes_in(function) if (line, name) not in resolved]
        for name, line in taken:
            yield from _of_method(name, line)
        yield from self._of_modules(function, reads, {name for name, _ in taken})

    def name_of(self, value: Any) -> str | None:
        """Return what a value depends on if it is itself external, such as `open` in a table."""
        if id(value) in self._by_id:
            what, name = self._by_id[id(value)]
            return f"{what} through {name.removeprefix('builtins.')}"
        if isinstance(value, types.MethodType | types.BuiltinMethodType):
            return _of_bound(value)
        if isinstance(value, FOREIGN) or type(value).__module__ in _FOREIGN_MODULES:
            return f"{_COMPILED} through a {origin.name_of(type(value))} object"
        return None

    def covers(self, number: int | str) -> bool:
        """Tell whether the object with this `id` is in the tables."""
        return number in self._by_id

    def _of_read(self, read: Read) -> str | None:
        name = read.library or ""
        found = _BY_NAME.get(name) or self._by_id.get(id(read.value)) or _of_module(name, read.value)
        if found is not None:
            return f"{found[0]} through {read.path if read.library is None else found[1].removeprefix('builtins.')}"
        what = _of_class(read.value, read.after)
        return f"{what} through {read.library or read.path}.{read.after}" if what else self.name_of(read.value)

    def _of_modules(self, function: types.FunctionType, reads: list[Read], attributes: set[str]) -> Iterator[Found]:
        """Yield what is taken of a library's module by a text, as in getattr(os, "environ"), or by another name."""
        modules = [(module, read.line) for read in reads if (module := _whole_module(read)) is not None]
        texts = {item for code in codes_within(function.__code__) for item in code.co_consts if isinstance(item, str)}
        for module, line in modules:
            for name in sorted(texts | attributes):
                value = vars(module).get(name)
                full = f"{module.__name__}.{name}"
                found = _BY_NAME.get(full) or self._by_id.get(id(value)) or _of_module(full, value)
                if found is not None:
                    yield line, f"{found[0]} through {found[1].removeprefix('builtins.')}", None


def class_met(value: Any) -> type | None:
    """Return the class with methods that read something external, if a value is one, a child or an object of it."""
    kind = value if isinstance(value, type) else type(value)
    return next((known for known in _METHODS_OF if known in kind.__mro__), None)


def class_named(name: str) -> type | None:
    """Return the same for a name in a library that is not loaded."""
    home = name.rpartition(".")[0]
    return next((known for known in _METHODS_OF if home and known.__module__.partition(".")[0] == home), None)


def _of_method(name: str, line: int | None) -> Iterator[Found]:
    if name in _METHODS:
        yield line, f"{_METHODS[name]} through .{name}()", None
    for kind, names in _METHODS_OF.items():
        if name in names:
            yield line, f"{_FILE} through .{name}()", kind


def _of_bound(method: Any) -> str | None:
    owner, name = method.__self__, method.__name__
    what = _of_class(owner, name)
    kind = None if isinstance(owner, type) else class_met(owner)
    if kind is not None and (name in _METHODS_OF[kind] or name in _METHODS):
        what = _FILE
    return what and f"{what} through {getattr(method, '__qualname__', name)}"


def _of_class(owner: Any, name: str | None) -> str | None:
    return next((what for (kind, known), what in _OF_CLASSES.items() if known == name and owner is kind), None)


def _of_module(name: str, value: Any) -> tuple[str, str] | None:
    what = _MODULES.get(name.rpartition(".")[0])
    is_function = not isinstance(value, type | types.ModuleType) and name not in _HARMLESS
    return (what, name) if what is not None and is_function else None


def _whole_module(read: Read) -> types.ModuleType | None:
    """Return the library's module that a read hands on as a whole, if it does."""
    if (read.library or "").endswith(".__dict__"):
        return sys.modules.get((read.library or "").removesuffix(".__dict__"))
    is_one = isinstance(read.value, types.ModuleType) and origin.is_library_module(read.value)
    return read.value if is_one and not origin.is_isotherms(read.value) else None


def _loaded() -> Iterator[tuple[str, Any]]:
    """Yield what the names stand for, as far as their modules are loaded; a text or number is no one's own."""
    for modules in _EXTERNAL.values():
        for module in (module for module in modules if module in sys.modules):
            space = getattr(sys.modules[module], "__dict__", {})
            for name in modules[module].split():
                if not isinstance(space.get(name), _PLAIN):
                    yield f"{module}.{name}", space[name]


def _functions(modules: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the public functions of the modules that are loaded."""
    for module in modules:
        for name, thing in list(getattr(sys.modules.get(module), "__dict__", {}).items()):
            if not name.startswith("_") and callable(thing) and _of_module(f"{module}.{name}", thing):
                yield f"{module}.{name}", thing
