"""Examples, importable so that `isotherm run examples.own_model:sweep` works from the repository's root."""
