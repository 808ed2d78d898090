"""Datasets as tensors, one file per family."""
