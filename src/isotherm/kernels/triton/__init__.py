"""Triton kernels; imported only when one is launched, as Triton may not be installed."""
