"""What people see: figures, tables and self-contained HTML pages.

`study` shows an analysis, `diagnosis` a diagnosis, `theory` the demonstrations. The numbers of a figure are plain
records; drawing only shows them.
"""
