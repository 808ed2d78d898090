"""Traced steps as a CPU or a GPU executes them."""
