"""Isotherm: learning rate and batch size for SGD, AdamW and Muon, chosen by measurement.

import isotherm as it

task = it.Task(name="mine", model=build_model, train=(x, y), test=(x_test, y_test))
sweep = it.Sweep(task=task, batch_sizes=[16, 64], effective_learning_rates=it.powers_of_two(-6, 2),
                 budget=it.Budget.steps(2000))
results = it.run(sweep, store="mine.sqlite")
it.write_report(it.analyse(results), "mine")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from isotherm.core.views import say_where

if TYPE_CHECKING:
    from isotherm.analysis.analysis import Analysis, analyse, recommend, regimes
    from isotherm.analysis.recommend import Recommendation
    from isotherm.analysis.regimes import JointRegimes, Regimes
    from isotherm.analysis.sweep_power import SweepPower, power
    from isotherm.analysis.unlimited import steps_to_target
    from isotherm.analysis.verdicts import Verdict
    from isotherm.core.budget import Budget
    from isotherm.core.optimizers import SGD, Adam, AdamW, Muon
    from isotherm.core.rates import IsothermGrid, powers_of_two
    from isotherm.core.records import Direction, Outcome
    from isotherm.core.schedule import Schedule
    from isotherm.core.temperature import bare_learning_rate, effective_learning_rate, temperature
    from isotherm.data.augment import CropAndFlip, Scaled
    from isotherm.diagnose.ask import diagnose
    from isotherm.diagnose.diagnosis import Diagnosis
    from isotherm.diagnose.options import DiagnoseOptions
    from isotherm.errors import StoreError, UnseenWarning, UserError
    from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
    from isotherm.report.study.folder import write_report
    from isotherm.running.cost import Estimate, plan
    from isotherm.running.runner import run, run_study
    from isotherm.running.store import Store
    from isotherm.running.stored import open_results
    from isotherm.sweep.plane import plane_optimum, plane_train_optimum
    from isotherm.sweep.results import Results, StudyResults
    from isotherm.sweep.study import Study
    from isotherm.sweep.sweep import Sweep
    from isotherm.tasks.builtin import get_task
    from isotherm.tasks.datasets.split import as_split
    from isotherm.tasks.inputs import LazyInputs
    from isotherm.tasks.metrics import Metric
    from isotherm.tasks.task import Task
    from isotherm.version import __version__

# Where each public name is defined. Loaded when asked for: `isotherm --help` needs no PyTorch.
_HOMES = {
    "Adam": "isotherm.core.optimizers",
    "AdamW": "isotherm.core.optimizers",
    "Analysis": "isotherm.analysis.analysis",
    "Budget": "isotherm.core.budget",
    "CropAndFlip": "isotherm.data.augment",
    "DiagnoseOptions": "isotherm.diagnose.options",
    "Diagnosis": "isotherm.diagnose.diagnosis",
    "Direction": "isotherm.core.records",
    "Estimate": "isotherm.running.cost",
    "GhostBatchNorm2d": "isotherm.models.ghost_batch_norm",
    "IsothermGrid": "isotherm.core.rates",
    "JointRegimes": "isotherm.analysis.regimes",
    "LazyInputs": "isotherm.tasks.inputs",
    "Metric": "isotherm.tasks.metrics",
    "Muon": "isotherm.core.optimizers",
    "Outcome": "isotherm.core.records",
    "Recommendation": "isotherm.analysis.recommend",
    "Regimes": "isotherm.analysis.regimes",
    "Results": "isotherm.sweep.results",
    "SGD": "isotherm.core.optimizers",
    "Scaled": "isotherm.data.augment",
    "Schedule": "isotherm.core.schedule",
    "Store": "isotherm.running.store",
    "StoreError": "isotherm.errors",
    "Study": "isotherm.sweep.study",
    "StudyResults": "isotherm.sweep.results",
    "Sweep": "isotherm.sweep.sweep",
    "SweepPower": "isotherm.analysis.sweep_power",
    "Task": "isotherm.tasks.task",
    "UnseenWarning": "isotherm.errors",
    "UserError": "isotherm.errors",
    "Verdict": "isotherm.analysis.verdicts",
    "__version__": "isotherm.version",
    "analyse": "isotherm.analysis.analysis",
    "as_split": "isotherm.tasks.datasets.split",
    "bare_learning_rate": "isotherm.core.temperature",
    "diagnose": "isotherm.diagnose",  # a package that can be called
    "effective_learning_rate": "isotherm.core.temperature",
    "get_task": "isotherm.tasks.builtin",
    "open_results": "isotherm.running.stored",
    "plan": "isotherm.running.cost",
    "plane_optimum": "isotherm.sweep.plane",
    "plane_train_optimum": "isotherm.sweep.plane",
    "power": "isotherm.analysis.sweep_power",
    "powers_of_two": "isotherm.core.rates",
    "recommend": "isotherm.analysis.analysis",
    "regimes": "isotherm.analysis.analysis",
    "run": "isotherm.running.runner",
    "run_study": "isotherm.running.runner",
    "steps_to_target": "isotherm.analysis.unlimited",
    "temperature": "isotherm.core.temperature",
    "write_report": "isotherm.report.study.folder",
}

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Analysis",
    "Budget",
    "CropAndFlip",
    "DiagnoseOptions",
    "Diagnosis",
    "Direction",
    "Estimate",
    "GhostBatchNorm2d",
    "IsothermGrid",
    "JointRegimes",
    "LazyInputs",
    "Metric",
    "Muon",
    "Outcome",
    "Recommendation",
    "Regimes",
    "Results",
    "Scaled",
    "Schedule",
    "Store",
    "StoreError",
    "Study",
    "StudyResults",
    "Sweep",
    "SweepPower",
    "Task",
    "UnseenWarning",
    "UserError",
    "Verdict",
    "__version__",
    "analyse",
    "as_split",
    "bare_learning_rate",
    "diagnose",
    "effective_learning_rate",
    "get_task",
    "open_results",
    "plan",
    "plane_optimum",
    "plane_train_optimum",
    "power",
    "powers_of_two",
    "recommend",
    "regimes",
    "run",
    "run_study",
    "steps_to_target",
    "temperature",
    "write_report",
]

# What methods of results show, in rooms that come after them.
say_where(
    {
        "table": "isotherm.report.shown:table",
        "to_pandas": "isotherm.report.shown:to_pandas",
        "plot": "isotherm.report.shown:plot",
        "report": "isotherm.report.shown:report",
        "html": "isotherm.report.shown:as_html",
        "progress": "isotherm.cli.shown_progress:default_progress",
        "stages": "isotherm.cli.shown_progress:default_stages",
        "diagnosis": "isotherm.report.shown:diagnosis_text",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isotherm' has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
