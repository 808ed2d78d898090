"""The blocks of docs/performance.md, one module per kind of measurement."""
