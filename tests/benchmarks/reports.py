"""A trimmed record of real runs on digits, and how a page is read."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path

DATA = Path(__file__).parent / "data" / "lam.json"
TASK = "digits"
SIX = ["metric learning, 1/norm", "laplace", "laplace, tuned", "k-nn distance", "deep ensemble",
       "mcinfonce"]  # fmt: skip


def read_digits():
    """The record of every test."""
    return json.loads(DATA.read_text())


def renamed(record, protocol, names):
    """The record as if another protocol had given these names to the numbers of R-AUROC."""
    found = copy.deepcopy(record)
    found["protocol"] = protocol
    for row in found["rows"]:
        row["metrics"] |= {name: dict(row["metrics"]["r_auroc"]) for name in names}
    return found


class Page(HTMLParser):
    """Tags with their attributes; fails where one is not closed."""

    VOID = ("meta", "img", "br", "hr")

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def row_of(html, method):
    """The first table row of a method, as text of its cells."""
    found = re.search(rf'<tr><th scope="row">{re.escape(method)}</th>(.*?)</tr>', html)
    return re.findall(r"<td(.*?)</td>", found[1])
