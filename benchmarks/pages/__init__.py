"""What the documents say of measured results: the parts that scripts write from the result files."""
