"""The paper's figures and tables by name: one file each, collected by `registry`."""
