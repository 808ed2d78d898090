"""Data sets that are read item by item: stacked once where they fit into memory, else read when a batch needs them."""
