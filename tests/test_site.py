"""The hook that makes pages of the site from files next to the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("latex2mathml")

from markdown import markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HOOK = Path(__file__).parent.parent / "docs" / "_site.py"


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("site_hook", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    made = MkDocsConfig()
    made.load_dict({"site_name": "s", "site_url": None})
    made.validate()
    made.plugins._current_plugin = "hook"
    return made


def read(file: File, config: MkDocsConfig) -> Page:
    page = Page(None, file, config)
    page.read_source(config)
    return page


def test_a_search_of_the_site_leaves_out_the_pages_of_rivals_and_no_other(hook, config):
    written = hook.on_files(Files([]), config)
    pages = {file.src_uri: read(file, config) for file in written if file.src_uri.endswith(".md")}
    left_out = {name for name, page in pages.items() if page.meta.get("search", {}).get("exclude")}
    assert left_out == set(hook.METHODS.values())
    assert len(left_out) > 20
    for name in left_out:
        assert pages[name].markdown.lstrip().startswith("# "), name


def test_every_page_with_a_formula_is_drawn_with_it(hook):
    pages = {path.name for path in HOOK.parent.glob("*.md") if "$$" in path.read_text()}
    assert pages == set(hook.WITH_TEX) - {"settings.md"}


@pytest.mark.parametrize("text", ["$C$ is large", "where $C$ is large"])
def test_a_formula_in_a_sentence_stays_in_its_paragraph(hook, config, text):
    page = Page(None, File("posterior.md", str(HOOK.parent), "", use_directory_urls=False), config)
    drawn = hook.on_page_markdown(f"{text}.\n", page, config, Files([]))
    assert "<math" in drawn
    made = markdown(drawn, extensions=["attr_list", "md_in_html"])
    assert made.startswith("<p>")
    assert made.endswith("is large.</p>")
    assert made.count("<p>") == 1
