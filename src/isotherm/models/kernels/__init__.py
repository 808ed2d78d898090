"""GPU kernels in Triton, which may not be installed: only who is about to launch a kernel imports its module."""
