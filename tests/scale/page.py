"""The code of the page on scale: ``<!-- name -->`` before a block says what it needs to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import laplace_metric

PAGE = Path(laplace_metric.__file__).parents[1] / "docs" / "scale.md"


def blocks(needs: str = "") -> list[str]:
    """In order; those that need nothing, or those that need ``needs``."""
    found = re.findall(r"(?:<!-- (\w+) -->\n)?```python\n(.*?)```", PAGE.read_text(), flags=re.S)
    return [code for name, code in found if name == needs]


def run(scope: dict[str, Any], needs: str = "") -> dict[str, Any]:
    """Run these blocks in one scope."""
    for block in blocks(needs):
        exec(compile(block, str(PAGE), "exec"), scope)
    return scope
