"""Train cells of the paper's table 6, the LSTM at 16,560 updates, and export them.

    python benchmarks/table6.py run STORE 16 32 --data FOLDER          # trains what is missing, on a GPU
    python benchmarks/table6.py export STORE ... --commit 3dfdbee      # adds them to results/table6/table6.json

Every batch size has the paper's learning rate with a neighbour on each side, and five seeds.
"""

from __future__ import annotations

from pages.paper import TABLE_6
from paper_table import main

if __name__ == "__main__":
    main(TABLE_6)
