"""Print the lowest versions that pyproject.toml admits, as constraints for pip.

python benchmarks/lowest_versions.py > lowest.txt
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def lowest(requirements: list[str]) -> list[str]:
    """Return requirements with their lower bounds as the only version; those without one are left out.

    >>> lowest(["torch>=2.11", "rich>=13,<15", "mlflow[extras]>=2; python_version > '3'", "numpy"])
    ['torch==2.11.*', 'rich==13.*', 'mlflow==2.*']
    """
    found = (re.match(r"([\w.-]+)(?:\[[^\]]*\])?>=([\w.]+)", one) for one in requirements)
    return [f"{one[1]}=={one[2]}.*" for one in found if one]


def main() -> None:
    """Print the constraints of the core dependencies."""
    print("\n".join(lowest(tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"])))


if __name__ == "__main__":
    main()
