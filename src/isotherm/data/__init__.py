"""Data sets as tensors, one file per family."""
