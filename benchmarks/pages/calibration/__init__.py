"""The blocks and the figure of docs/calibration.md: runs, tables of each network, speeds."""
