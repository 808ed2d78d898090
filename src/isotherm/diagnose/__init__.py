"""A quick path to a learning rate and a batch size: minutes of short runs instead of a sweep."""

from isotherm.diagnose.diagnosis import Diagnosis
from isotherm.diagnose.options import DiagnoseOptions
from isotherm.diagnose.procedure import diagnose

__all__ = ["DiagnoseOptions", "Diagnosis", "diagnose"]
