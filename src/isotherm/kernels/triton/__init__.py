"""Kernels in Triton, which may not be installed; imported only where one is launched."""
