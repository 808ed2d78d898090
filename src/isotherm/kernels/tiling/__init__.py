"""How the work of kernels is cut into programs, by shapes alone."""
