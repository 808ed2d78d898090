"""How the kernels split their work into programs, from shapes alone."""
