"""The blocks and the figure of docs/calibration.md: runs, one table per network, speeds."""
