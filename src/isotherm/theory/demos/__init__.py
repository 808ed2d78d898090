"""The demonstrations of `isotherm theory NAME`, one file each."""
