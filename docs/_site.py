"""A hook of MkDocs: pages that lie beside their code become pages of the site, with their links.

The README is the first page. A link to another page of the site leads there, a figure is copied,
and a link to any other file keeps its words alone: the site stands without the repository. TeX
becomes MathML, which browsers draw without a script. Every baseline has a page from its docstring
and the committed JSON. A notebook becomes a page with the outputs that are stored in it: nothing is
run, and it looks like every other page.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # benchmarks are not installed

from benchmarks.report.method_pages import FILES, method_page  # noqa: E402

PAGES = {
    ROOT / "README.md": "index.md",
    **{
        path: str(path.relative_to(ROOT))
        for folder in ("baselines", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("README.md")
    },
    **{ROOT / f"{name}.md": f"{name}.md" for name in ("CONTRIBUTING", "SECURITY", "CHANGELOG")},
}
METHODS = {ROOT / "baselines" / f"{name}.py": f"baselines/{name}.md" for name in FILES}
"""A baseline's file, and the page that is written for it."""
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n"
"""Front matter: a search for a word of the toolkit finds no rival's docstring before its guide."""
NOTEBOOKS = {path: f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.ipynb")}
WRITTEN = PAGES | METHODS | NOTEBOOKS
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")


WITH_TEX = ("match.md", "mathematics.md", "posterior.md", "settings.md")
TEX = re.compile(r"\$\$(.+?)\$\$|\$([^$\s](?:[^$\n]*[^$\s])?)\$", re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and the figures from outside of ``docs``."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=source.read_text()))
    for source, name in METHODS.items():
        content = UNSEARCHED + method_page(source.stem)
        files.append(File.generated(config, name, content=content))
    for source, name in NOTEBOOKS.items():
        text, pictures = notebook_page(source)
        files.append(File.generated(config, name, content=text))
        for picture, content in pictures.items():
            files.append(File.generated(config, f"examples/{picture}", content=content))
    for figure in (ROOT / "benchmarks" / "figures").iterdir():
        name = str(figure.relative_to(ROOT))
        files.append(File.generated(config, name, abs_src_path=str(figure)))
    return files


def notebook_page(source: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by file name; each is named by the text above it."""
    parts, pictures, above = [], dict[str, bytes](), ""
    for cell in json.loads(source.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            above = " ".join(re.sub(r"\]\([^)]*\)|[*`\[\]#]", "", text).split())
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{source.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![{above}]({name})")
                continue
            shown = "".join(output.get("text", data.get("text/plain", ""))).rstrip("\n")
            if shown:
                parts.append(f"```text\n{shown}\n```")
    return "\n\n".join(parts) + "\n", pictures


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as the site has them; blocks of code are left alone."""
    name = page.file.src_uri
    source = next((path for path, other in WRITTEN.items() if other == name), ROOT / "docs" / name)
    if name in WITH_TEX:
        markdown = TEX.sub(_mathml, markdown)
    parts = re.split(r"(```.*?```)", markdown, flags=re.S)
    return "".join(
        part if part.startswith("```") else LINK.sub(lambda m: _link(m, source, name), part)
        for part in parts
    )


def _mathml(match: re.Match[str]) -> str:
    block, inline = match.groups()
    if inline:  # a line that begins with <math> would be a block
        return f"<span>{convert(inline)}</span>"
    text = convert(block, display="block")
    return f'\n<div style="overflow: auto hidden; padding: .3em 0">{text}</div>\n'


def _link(match: re.Match[str], source: Path, name: str) -> str:
    mark, words, target = match.groups()
    words = LINK.sub(lambda inner: _link(inner, source, name), words)
    if mark and "://" in target:  # a badge: the site loads nothing from elsewhere
        return ""
    path, _, heading = target.partition("#")
    if "://" in target or not path:
        return f"{mark}[{words}]({target})"
    place = _place((source.parent / path).resolve())
    if place is None:
        return words
    where = os.path.relpath(place, Path(name).parent)
    return f"{mark}[{words}]({where}{'#' + heading if heading else ''})"


def _place(path: Path) -> str | None:
    """Of a file on the site; None where it is not part of it."""
    if path in WRITTEN:
        return WRITTEN[path]
    if path.parent == ROOT / "examples" and path.suffix == ".png":  # taken out of a notebook
        return str(path.relative_to(ROOT))
    for folder in (ROOT / "docs", ROOT / "benchmarks" / "figures"):
        if path.is_relative_to(folder) and path.suffix in (".md", ".png", ".svg"):
            return str(path.relative_to(ROOT / "docs" if folder.name == "docs" else ROOT))
    return None
