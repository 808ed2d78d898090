"""The blocks of docs/performance.md, a module for each kind of measurement."""
