"""Draw the calibration runs and write their numbers into the documents.

    python benchmarks/calibration_report.py

Reads results/calibration/*.json; writes docs/figures/calibration.png and every block between the markers
`<!-- calibration: NAME -->` and `<!-- end -->` in docs/calibration.md and README.md. No number there is typed by hand.
"""

from __future__ import annotations

from pages.blocks import Page
from pages.calibration import figure
from pages.calibration.autoencoder import autoencoder_block
from pages.calibration.comparison import readme_block, results_block
from pages.calibration.lstm import lstm_block
from pages.calibration.speeds import equality_block, throughput_block
from pages.calibration.wide_resnet import skip_init_block, wide_resnet_block
from pages.results import ROOT

FIGURE = ROOT / "docs" / "figures" / "calibration.png"
DOCUMENTS = (ROOT / "docs" / "calibration.md", ROOT / "README.md")
PAGE = Page(
    name="calibration",
    blocks={
        "results": results_block,
        "readme": readme_block,
        "autoencoder": autoencoder_block,
        "lstm": lstm_block,
        "wide_resnet": wide_resnet_block,
        "skip_init": skip_init_block,
        "throughput": throughput_block,
        "equality": equality_block,
    },
)


def main() -> None:
    """Write the figure and the blocks."""
    figure.save(FIGURE)
    for path in DOCUMENTS:
        PAGE.write(path)
    print(f"wrote {FIGURE.relative_to(ROOT)} and the blocks of {', '.join(path.name for path in DOCUMENTS)}")


if __name__ == "__main__":
    main()
