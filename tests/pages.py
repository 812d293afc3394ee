"""Pages run from the first line to the last: ``python -m tests.pages README.md docs/match.md``.

The command stores below each block of Python what it prints now; sentences around it that repeat
a number are left to be read.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(r"(?<=```)(python|text)\n(.*?)(?=```)", flags=re.S)


def shown_and_printed(page: Path) -> Iterator[tuple[str, str]]:
    """Run the code of a page in this folder; yield each block of text, and what was printed.

    A reader who copies a block shall not meet a warning that the page does not name.
    """
    scope: dict[str, object] = {}
    printed = io.StringIO()
    text = page.read_text()
    for language, block in BLOCK.findall(text):
        if language == "text":
            yield block, printed.getvalue()
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings_named(text):
            exec(compile(block, str(page), "exec"), scope)


@contextlib.contextmanager
def warnings_named(text: str) -> Iterator[None]:
    """Require that a page names the class of each warning that its code gives."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield
    unnamed = [w for w in warned if w.category.__name__ not in text]
    told = "; ".join(f"{w.category.__name__}: {w.message}" for w in unnamed)
    assert not unnamed, f"the page does not name what its code warns of: {told}"


def printing_without_output(page: Path) -> list[str]:
    """Return the blocks that print, and do not show what; those that are marked need packages."""
    blocks = re.findall(r"(<!-- \w+ -->\n)?```(\w+)\n(.*?)```", page.read_text(), flags=re.S)
    following = [language for _, language, _ in blocks[1:]] + [""]
    return [
        block
        for (marked, language, block), after in zip(blocks, following, strict=False)
        if language == "python" and not marked and after != "text"
        if re.search(r"^\s*print\(", block, flags=re.M)
    ]


def stored_anew(page: Path) -> bool:
    """Write what is printed into a page; return whether it was another text."""
    before = page.read_text()
    prints = iter([printed for _, printed in shown_and_printed(page)])
    after = BLOCK.sub(lambda m: f"text\n{next(prints)}" if m[1] == "text" else m[0], before)
    page.write_text(after)
    return before != after


def main(names: list[str]) -> None:
    """Store what the pages of these paths print."""
    for page in map(Path.resolve, map(Path, names)):
        home = Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                changed = stored_anew(page)
            finally:
                os.chdir(home)
        print(f"{page.name}: {'changed' if changed else 'as it was'}")


if __name__ == "__main__":
    main(sys.argv[1:])
