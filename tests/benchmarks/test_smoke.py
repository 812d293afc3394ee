"""Every protocol that needs no download, from the command line to the page."""

from __future__ import annotations

import json

import pytest

from benchmarks.engine.fitting import Fitting
from benchmarks.registry import COMMANDS, main

PROTOCOLS = ("lam", "url", "pretrained")
METHODS = ("metric learning, 1/norm", "laplace", "laplace, clipped", "1/norm", "k-nn distance",
           "mcinfonce")  # fmt: skip


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    words = [*PROTOCOLS, "--cache", str(cache), "--quiet", "--methods", *METHODS]
    assert main(words) == 0
    return words, cache


def test_all_of_it_is_kept(command, monkeypatch):
    words, cache = command

    def fail(*_):
        raise AssertionError("finished work was repeated")

    monkeypatch.setattr(Fitting, "fit", fail)
    assert main(words) == 0
    assert len(list(cache.glob("*/runs-smoke/*.json"))) > 20


def test_a_page_and_a_json_a_protocol(command, tmp_path, monkeypatch):
    _, cache = command
    monkeypatch.chdir(tmp_path)
    options = ["--size", "smoke", "--cache", str(cache), "--json", str(tmp_path)]
    assert main(["report", *options]) == 0
    page = (tmp_path / "report.html").read_text()
    for name in PROTOCOLS:
        record = json.loads((tmp_path / f"{name}.json").read_text())
        assert {row["method"] for row in record["rows"]} <= set(METHODS)
        assert all(len(row["metrics"]) >= 3 for row in record["rows"])
        assert f'id="{name}' in page, name
    assert "http:" not in page.replace("http://www.w3.org", "")
    assert "https:" not in page


def test_the_other_commands_have_help(capsys):
    for name in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
        assert f"python -m benchmarks {name}" in capsys.readouterr().out
