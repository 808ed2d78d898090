"""Names in Python's libraries that get at something external to a program: files, the clock, chance, the machine."""

from __future__ import annotations

FILE = "the content of a file"
CHANCE = "chance"
CLOCK = "the clock"
MACHINE = "the machine it runs on"
COMPILED = "compiled code"
EXTERNAL: dict[str, dict[str, str]] = {  # what -> module -> names in it
    FILE: {
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
    CLOCK: {
        "time": (
            "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time process_time_ns "
            "thread_time thread_time_ns clock_gettime clock_gettime_ns localtime gmtime ctime asctime strftime"
        ),
        "os": "times",
        "timeit": "default_timer",
    },
    CHANCE: {
        "os": "urandom getrandom",
        "uuid": "uuid1 uuid4",
        "random": "SystemRandom _inst",
        "numpy.random.mtrand": "_rand",
        "ssl": "RAND_bytes",
        "tempfile": "mkdtemp mkstemp mktemp NamedTemporaryFile TemporaryDirectory",
    },
    MACHINE: {
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
    COMPILED: {
        "ctypes": "CDLL PyDLL cdll pydll pythonapi",
        "ctypes.util": "find_library",
        "numpy.ctypeslib": "load_library",
        "cffi": "FFI",
        "torch.utils.cpp_extension": "load load_inline",
    },
}
BY_NAME = {
    f"{module}.{name}": (what, f"{module}.{name}")
    for what, modules in EXTERNAL.items()
    for module, names in modules.items()
    for name in names.split()
}
# Every function of these modules is external, but for those listed below.
MODULES = {"random": CHANCE, "numpy.random": CHANCE, "secrets": CHANCE, "platform": MACHINE}
HARMLESS = {"numpy.random.default_rng", "numpy.random.test", "secrets.compare_digest"}
