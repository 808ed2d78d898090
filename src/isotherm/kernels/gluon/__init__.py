"""Kernels in Gluon for Hopper GPUs; imported only where one is launched."""
