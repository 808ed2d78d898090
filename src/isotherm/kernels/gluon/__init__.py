"""Gluon kernels for Hopper GPUs; imported only when one is launched."""
