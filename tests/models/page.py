"""The files that the page "Models" has for the commands."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def file_of_the_page(library: str) -> str:
    found = re.search(rf"<!-- my_model {library} -->\n```py\n(.*?)```", PAGE.read_text(), re.S)
    assert found is not None, library
    return found[1]
