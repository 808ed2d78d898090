"""Isotherm: learning rate and batch size for SGD, chosen by measurement.

import isotherm as it

task = it.Task(name="mine", model=build_model, train=(x, y), test=(x_test, y_test))
sweep = it.Sweep(task=task, batch_sizes=[16, 64], effective_learning_rates=it.powers_of_two(-6, 2),
                 budget=it.Budget.steps(2000))
results = it.run(sweep, store="mine.sqlite")
"""

__version__ = "0.1.0"

from isotherm.budget import Budget
from isotherm.data.augment import CropAndFlip, Scaled
from isotherm.errors import StoreError, UserError
from isotherm.models.ghost_batch_norm import GhostBatchNorm2d
from isotherm.named_tasks import get_task
from isotherm.recommend import Recommendation, recommend
from isotherm.records import Direction, Outcome
from isotherm.regimes import JointRegimes, Regimes, joint_regimes, regimes
from isotherm.results import Results, StudyResults
from isotherm.runner import run, run_study
from isotherm.schedule import Schedule
from isotherm.store import Store
from isotherm.study import Study
from isotherm.sweep import IsothermGrid, Sweep, powers_of_two
from isotherm.tasks import LazyInputs, Metric, Task
from isotherm.temperature import bare_learning_rate, effective_learning_rate, temperature

__all__ = [
    "Budget",
    "CropAndFlip",
    "Direction",
    "GhostBatchNorm2d",
    "IsothermGrid",
    "JointRegimes",
    "LazyInputs",
    "Metric",
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
    "Task",
    "UserError",
    "bare_learning_rate",
    "effective_learning_rate",
    "get_task",
    "joint_regimes",
    "powers_of_two",
    "recommend",
    "regimes",
    "run",
    "run_study",
    "temperature",
]
