"""What people see of results: figure data, figures, tables, and one self-contained HTML file.

`figures` holds the numbers of every figure as plain records. `draw` (matplotlib) and `interactive` (plotly) only show
them; `tables` writes CSV and the terminal's table; `html` puts everything on one page.
"""
