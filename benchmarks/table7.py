"""Train cells of the paper's table 7, the autoencoder at 156,250 updates, and export them.

    python benchmarks/table7.py run STORE 64 256 --data FOLDER         # trains what is missing, on a GPU
    python benchmarks/table7.py export STORE ... --commit 3dfdbee      # adds them to results/table7/table7.json

Every batch size has the learning rates 0.04, 0.08 and 0.16 and seven seeds; the paper keeps the best five.
"""

from __future__ import annotations

from pages.paper import TABLE_7
from paper_table import main

if __name__ == "__main__":
    main(TABLE_7)
