"""The parts of the documents that scripts generate from result files."""
