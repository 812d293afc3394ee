"""What a built wheel holds: ``python -m tests.wheel FILE.whl`` fails for another top-level name."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

NAME = "laplace_metric"


def top_level_names(wheel: Path) -> set[str]:
    """Names that an installation puts next to those of other packages."""
    with zipfile.ZipFile(wheel) as file:
        names = {name.split("/")[0] for name in file.namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


if __name__ == "__main__":
    found = top_level_names(Path(sys.argv[1]))
    assert found == {NAME}, f"the wheel has the top-level names {sorted(found)}"
