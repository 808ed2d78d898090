"""What `isotherm theory NAME` computes, one file for each: real numbers of the modules of the same names."""
