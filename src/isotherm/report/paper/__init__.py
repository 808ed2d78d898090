"""The paper's figures and tables from our runs, beside the published numbers."""
