"""Studies loaded by reference: a built-in name, a TOML file, or `module:function`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from isotherm.core.budget import Budget, Until
from isotherm.core.checks import require_choice
from isotherm.core.l2 import L2Scope
from isotherm.core.optimizers import Optimizer, optimizer_of
from isotherm.core.rates import IsothermGrid
from isotherm.core.records import Precision
from isotherm.core.schedule import Schedule
from isotherm.data.files import require_regular
from isotherm.errors import UserError, nearest
from isotherm.studies import STUDIES
from isotherm.studies.paper.registry import objects
from isotherm.sweep.plan import ExtendFor, Resolution, TuneOn, TuneQuantity
from isotherm.sweep.study import Study
from isotherm.sweep.sweep import Sweep
from isotherm.tasks.builtin import TASKS
from isotherm.tasks.load import call_reference, load_task, own_function
from isotherm.tasks.task import Task


def load_study(reference: str, *, data: Path | None = None, resolution: str | None = None) -> Study:
    """Return the study that a built-in name, a TOML file or `module:function` refers to.

    Args:
        reference: what the user gave.
        data: folder of the data sets, for every task of the study; None as in `get_task`.
        resolution: "adaptive" or "paper" for every sweep of the study; None keeps what they say.
    """
    if resolution is not None:
        require_choice("resolution", resolution, get_args(Resolution))
    study = _load(reference, data=data)
    return study if resolution is None else study.with_resolution(cast(Resolution, resolution))


def _load(reference: str, *, data: Path | None) -> Study:
    if reference in STUDIES:
        return STUDIES[reference](data)
    if _is_file(reference):
        return read_study(Path(reference), data=data)
    if ":" in reference:
        return _checked_study(call_reference(reference, data=data), reference)
    raise UserError(f"{reference!r} is not a study; {_instead_of(reference)}")


def _instead_of(reference: str) -> str:
    """Return what to name in place of what is not a study."""
    if Path(reference).is_dir():
        files = sorted(str(file) for file in Path(reference).glob("*.toml"))
        return f"it is a folder; name a .toml file in it{': ' + ', '.join(files) if files else ''}"
    if reference in objects():
        return f"it is a figure or table of the paper: run it with isotherm reproduce {reference}"
    if reference in TASKS:
        return f"it is a task: train one cell of it with {_one_cell(reference)}"
    if Path(f"{reference}.toml").is_file():
        return f"did you mean {reference}.toml?"
    if reference.endswith(".py") and not Path(reference).is_file():
        return f"there is no file {reference}; check the path, and name the function too, e.g. module:sweep"
    found = own_function(reference, "Sweep")
    return (
        found
        if Path(reference).with_suffix(".py").is_file()
        else f"{nearest(reference, STUDIES)}; a .toml file; {found}"
    )


def _one_cell(task: str) -> str:
    return f"isotherm run --task {task} --batch-size 64 --effective-learning-rate 0.5 --steps 1000"


def _checked_study(made: object, reference: str) -> Study:
    if isinstance(made, Sweep):
        return Study.of(made)
    if isinstance(made, Task):
        raise UserError(
            f"{reference} returned a Task; let it return an isotherm.Sweep of that task, or train one cell of it with "
            + _one_cell(reference)
        )
    if not isinstance(made, Study):
        raise UserError(f"{reference} returned {type(made).__name__}; let it return an isotherm.Sweep or Study")
    return made


def study_name(reference: str) -> str:
    """Return the name of a study; a file's tasks are not loaded, since their data may be missing here."""
    return _read_file(Path(reference)).name if _is_file(reference) else load_study(reference).name


def _is_file(reference: str) -> bool:
    if reference in STUDIES or reference.endswith(".py"):
        return False
    return reference.endswith(".toml") or Path(reference).is_file()


# -- the TOML file --------------------------------------------------------------------------------------------------


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _listed_by_name(value: Any) -> Any:
    return [{"name": one} if isinstance(one, str) else one for one in _listed(value)]


def _named(value: Any) -> Any:
    return {"shape": value} if isinstance(value, str) else value


# A study is a few kB. Longer texts, and more mistakes than these, help nobody.
_MOST_BYTES = 2**20
_MOST_ERRORS = 10
_MOST_SHOWN = 60
_MOST_BITS = 4_096 * 3  # of a number: some 3,700 digits, as Python writes no more than 4,300


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Isotherm(_Table):
    """The fields of an `IsothermGrid`; a missing key keeps the default."""

    temperature: float
    ceiling: float | None = None
    num_below: int | None = None
    num_above: int | None = None
    ratio: float | None = None


class _Until(_Table):
    """The arguments of `Budget.until`; a missing key keeps the default."""

    first: float
    at_most: float | None = None
    target: float | None = None
    patience: int | None = None


class _Estimate(_Table):
    """A smaller budget: one of both."""

    steps: int | None = None
    epochs: float | None = None


class _Schedule(_Table):
    """The options of `Schedule.named`; a missing key keeps the default."""

    shape: str
    warmup_steps: int | None = None
    warmup_fraction: float | None = None
    gamma: float | None = None
    final_fraction: float | None = None
    final_effective_learning_rate: float | None = None
    decay_fraction: float | None = None
    points: list[list[float]] | None = None


class _Optimizer(_Table):
    """The options of all optimisers; `optimizer_of` refuses those of another one."""

    name: str
    momentum: float | None = None
    nesterov: bool | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    weight_decay: float | None = None
    adjustment: str | None = None
    adamw_ratio: float | None = None
    reference_batch_size: int | None = None


class _Sweep(_Table):
    """The fields of a `Sweep`; a missing key keeps the default."""

    name: str
    batch_sizes: list[int]
    task: str | None = None
    effective_learning_rates: list[float] | None = None
    learning_rates: list[float] | None = None
    isotherm: _Isotherm | None = None
    steps: Annotated[list[int] | None, BeforeValidator(_listed)] = None
    epochs: Annotated[list[float] | None, BeforeValidator(_listed)] = None
    until: _Until | None = None
    estimate_at: _Estimate | None = None
    momentum: Annotated[list[float] | None, BeforeValidator(_listed)] = None
    optimizer: Annotated[list[_Optimizer] | None, BeforeValidator(_listed_by_name)] = None
    l2: float | None = None
    l2_scope: L2Scope | None = None
    clip_norm: float | None = None
    schedule: Annotated[_Schedule | None, BeforeValidator(_named)] = None
    gamma: float | None = None
    final_effective_learning_rate: float | None = None
    final_learning_rates: list[float] | None = None
    num_seeds: int | None = None
    num_kept: int | None = None
    num_confirm: int | None = None
    tune_on: TuneOn | None = None
    tune_quantity: TuneQuantity | None = None
    validation_fraction: float | None = None
    num_evaluations: int | None = None
    max_extensions: int | None = None
    extend_for: ExtendFor | None = None
    resolution: Resolution | None = None
    smallest_ratio: float | None = None
    first_seed: int | None = None
    precision: Precision | None = None


class _File(_Table):
    name: str
    question: str = ""
    task: str | None = None
    sweep: list[_Sweep]


def read_study(path: Path, *, data: Path | None = None) -> Study:
    """Return the study of a TOML file; an error names the location of the mistake and the remedy."""
    file = _read_file(path)
    tasks: dict[str, Task] = {}
    sweeps = []
    for table in file.sweep:
        try:
            name = _task_name(table, file.task)
            if name not in tasks:
                tasks[name] = load_task(name, data=data)
            sweeps.append(_sweep(table, tasks[name]))
        except UserError as error:
            raise UserError(f"{path}, sweep {table.name!r}: {error}") from error
    return Study(name=file.name, question=file.question, sweeps=tuple(sweeps))


def _read_file(path: Path) -> _File:
    try:
        require_regular(path, at_most=_MOST_BYTES)
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        _require_short_numbers(content)
    except FileNotFoundError as error:
        raise UserError(f"there is no file {path}; {_files_beside(path)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}; give a text file in UTF-8 that you may read") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(
            f'{path} is not valid TOML: {error}; texts stand in quotes and lists in brackets, e.g. name = "mine" and '
            "batch_sizes = [8, 16]"
        ) from error
    except RecursionError as error:
        raise UserError(
            f"{path} is not a study: its tables or lists are nested too deeply; see docs/studies.md"
        ) from error
    except UserError:
        raise
    except (ValueError, OverflowError) as error:  # numbers and dates that Python does not have
        raise UserError(f"{path} holds a value that cannot be read ({error}); write a shorter number") from error
    try:
        return _File.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: {_sentences(error)}") from error


def _require_short_numbers(value: Any) -> None:
    """Refuse whole numbers that Python would not write: in hexadecimal they may have any number of digits."""
    if isinstance(value, dict):
        for inner in value.values():
            _require_short_numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            _require_short_numbers(inner)
    elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError(f"a number of {value.bit_length():,} bits")


def _sentences(error: ValidationError) -> str:
    """Return the first of pydantic's errors as sentences, and how many more there are."""
    found = error.errors(include_url=False, include_context=False)
    told = [_sentence(dict(e)) for e in found[:_MOST_ERRORS]]
    more = [f"and {len(found) - _MOST_ERRORS:,} more mistakes"] if len(found) > _MOST_ERRORS else []
    return "; ".join([*told, *more])


def _files_beside(path: Path) -> str:
    """Return which study files there are where one was not found."""
    files = sorted(file.name for file in path.parent.glob("*.toml")) if path.parent.is_dir() else []
    return nearest(path.name, files) if files else "check the path"


def _task_name(table: _Sweep, default: str | None) -> str:
    name = table.task or default
    if name is None:
        raise UserError(f'it names no task; add task = "..." to it or to the file; {nearest("", TASKS)}')
    return name


def _sweep(table: _Sweep, task: Task) -> Sweep:
    rates = {"isotherm", "effective_learning_rates", "learning_rates"}
    combined = {"task", *rates, "steps", "epochs", "until", "estimate_at", "optimizer"}
    scheduled = {"schedule", "gamma", "final_effective_learning_rate"}
    fields = table.model_dump(exclude_unset=True, exclude=combined | scheduled)
    return Sweep(
        **fields,
        task=task,
        **_learning_rates(table),
        optimizer=_optimizers(table),
        budget=_budgets(table),
        schedule=_schedule(table),
        estimate_at=_estimate(table),
    )


def _learning_rates(table: _Sweep) -> dict[str, Any]:
    _exactly_one(table, "effective_learning_rates", "learning_rates", "isotherm")
    if table.isotherm is not None:
        return {"effective_learning_rates": IsothermGrid(**table.isotherm.model_dump(exclude_unset=True))}
    return {
        "effective_learning_rates": table.effective_learning_rates,
        "learning_rates": table.learning_rates,
    }


def _optimizers(table: _Sweep) -> list[Optimizer] | None:
    if table.optimizer is None:
        return None
    return [optimizer_of(one.model_dump(exclude_unset=True)) for one in table.optimizer]


def _budgets(table: _Sweep) -> list[Budget] | Until:
    _exactly_one(table, "steps", "epochs", "until")
    if table.until is not None:
        return Budget.until(**table.until.model_dump(exclude_unset=True))
    if table.steps is not None:
        return [Budget.steps(amount) for amount in table.steps]
    return [Budget.epochs(amount) for amount in table.epochs or []]


def _estimate(table: _Sweep) -> Budget | None:
    if table.estimate_at is None:
        return None
    steps, epochs = table.estimate_at.steps, table.estimate_at.epochs
    if (steps is None) == (epochs is None):
        raise UserError("estimate_at needs steps or epochs, and not both; write e.g. estimate_at = { epochs = 2 }")
    return Budget.epochs(epochs) if epochs is not None else Budget.steps(steps or 0)


def _schedule(table: _Sweep) -> Schedule:
    if table.schedule is not None:
        for name in ("gamma", "final_effective_learning_rate"):
            if getattr(table, name) is not None:
                raise UserError(
                    f"schedule and {name} are both given; write schedule = "
                    f'{{ shape = "{table.schedule.shape}", {name} = {getattr(table, name):g} }}'
                )
        return Schedule.named(**table.schedule.model_dump(exclude_unset=True))
    if table.gamma is None and table.final_effective_learning_rate is None:
        return Schedule()
    return Schedule(gamma=table.gamma, final_effective_learning_rate=table.final_effective_learning_rate)


def _exactly_one(table: _Sweep, *names: str) -> None:
    given = [name for name in names if getattr(table, name) is not None]
    if len(given) != 1:
        wanted = f"{', '.join(names[:-1])} or {names[-1]}"
        none, several = ("neither", "both") if len(names) == 2 else ("none", " and ".join(given))
        what = f"{several} are given" if given else f"{none} is given"
        raise UserError(f"it needs {wanted}, and {what}; give exactly one")


def _sentence(error: dict[str, Any]) -> str:
    """Return one of pydantic's errors as location, value, reason and remedy."""
    location = ".".join(str(part + 1) if isinstance(part, int) else _short(str(part)) for part in error["loc"])
    kind, value = error["type"], error.get("input")
    if kind == "extra_forbidden":
        return f"unknown key {location!r}; {nearest(_short(str(error['loc'][-1])), _keys_at(error['loc'][:-1]))}"
    if kind == "missing":
        return f"the key {location!r} is missing; add it"
    if kind == "list_type" and error["loc"] == ("sweep",):
        return "the table [sweep] stands for one of several; write [[sweep]], in double brackets"
    shown = _shown(value)
    return f"{location} = {shown}: {_reason(error)}"


def _shown(value: Any) -> str:
    """Return a value as it is written, or its type where that is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists
        return type(value).__name__
    return text if len(text) < _MOST_SHOWN else type(value).__name__


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _reason(error: dict[str, Any]) -> str:
    """Return why a value cannot be used, and what to write."""
    kind, value = error["type"], error.get("input")
    if kind == "list_type" and isinstance(value, int | float | str):
        written = f'"{_short(value)}"' if isinstance(value, str) else _shown(value)
        return f"a list is needed; write [{written}]"
    if kind in ("int_type", "int_from_float"):
        if isinstance(value, float) and value.is_integer():
            return f"a whole number is needed; write {int(value)}"
        return "a whole number is needed, e.g. 8"
    if kind == "float_type":
        return "a number is needed, without quotes, e.g. 0.5"
    if kind == "string_type":
        return f'a text is needed; write it in quotes, e.g. "{_shown(value)}"'
    return f"{error['msg'][0].lower() + error['msg'][1:]}; change it"


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    """Return the known keys of the table at a location in the file."""
    tables: dict[str, type[_Table]] = {
        "sweep": _Sweep,
        "isotherm": _Isotherm,
        "until": _Until,
        "estimate_at": _Estimate,
        "schedule": _Schedule,
        "optimizer": _Optimizer,
    }
    names = [part for part in location if part in tables]
    return list((tables[names[-1]] if names else _File).model_fields)
