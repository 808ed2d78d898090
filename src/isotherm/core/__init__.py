"""Formulas and records of the paper; nothing here needs PyTorch."""
