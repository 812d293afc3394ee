"""Every protocol that needs no download, from the command line to the page."""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import packages, registry, whole_run
from benchmarks.engine.fitting import Fitting
from benchmarks.registry import COMMANDS, load_piece, main
from benchmarks.report import verdict

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


def without(monkeypatch, *missing):
    """As if these modules were not installed; a piece that starts is a failure."""
    found = packages.find_spec
    monkeypatch.setattr(packages, "find_spec", lambda m: None if m in missing else found(m))
    monkeypatch.setattr(registry, "run_piece", lambda *_: pytest.fail("ran"))
    monkeypatch.setattr(verdict.subprocess, "Popen", lambda *_, **__: pytest.fail("ran"))


def run_piece_of_all(monkeypatch):
    monkeypatch.setattr(registry, "run_piece", lambda place, options: load_piece(place)(options))


def test_what_is_not_installed_is_named_before_anything_runs(monkeypatch, tmp_path, capsys):
    without(monkeypatch, "optuna", "imagecorruptions")
    run_piece_of_all(monkeypatch)
    assert main(["all", "--size", "smoke", "--cache", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert "'optuna'" in line
    assert "imagecorruptions" not in line  # the smallest comparison corrupts nothing
    assert "pip install -e '.[benchmarks]'" in line
    assert main(["lam", "corruption", "--cache", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert "'optuna' and 'imagecorruptions'" in line
    assert not list(tmp_path.iterdir())


def test_a_whole_run_names_everything_at_once(monkeypatch, tmp_path, capsys):
    without(monkeypatch, "optuna", "wordfreq", "onnx", "uvicorn")
    run_piece_of_all(monkeypatch)
    monkeypatch.setattr(whole_run.WholePiece, "state", lambda _: whole_run.MISSING)
    where = ["--data", str(tmp_path), "--cache", str(tmp_path / "cache")]
    assert main(["all", *where]) == 2
    told = capsys.readouterr().out.splitlines()[-1]
    assert "'optuna', 'wordfreq', 'onnx' and 'uvicorn'" in told
    assert told.count("pip install") == 1
    assert "'.[benchmarks,export,serve]'" in told
    assert main(["all", "--only", "costs-export", *where]) == 2
    told = capsys.readouterr().out.splitlines()[-1]
    assert "'.[export]'" in told
    assert main(["all", "--only", "costs-export", "--plan"]) == 0


def test_a_piece_that_imports_what_is_missing_says_how_to_get_it(monkeypatch, capsys):
    def piece(*_):
        raise ModuleNotFoundError("No module named 'wordfreq'", name="wordfreq")

    without(monkeypatch, "wordfreq")
    monkeypatch.setattr(registry, "run_piece", piece)
    assert main(["recovery", "--size", "smoke", "--pieces", "levels"]) == 2
    assert "pip install -e '.[benchmarks]'" in capsys.readouterr().out

    def broken(*_):
        raise ModuleNotFoundError("No module named 'a_typo'", name="a_typo")

    monkeypatch.setattr(registry, "run_piece", broken)
    with pytest.raises(ModuleNotFoundError, match="a_typo"):
        main(["recovery", "--size", "smoke", "--pieces", "levels"])


def test_only_methods_whose_settings_are_searched_need_optuna():
    def needed(*methods, protocol="lam"):
        return packages.modules_of(argparse.Namespace(protocols=[protocol], methods=methods))

    assert needed("laplace, tuned") == ["optuna"]
    assert needed("laplace") == ["optuna"]  # of the network under it
    assert needed("laplace", protocol="pretrained") == []
    assert needed("laplace, tuned", protocol="pretrained") == ["optuna"]
    for name, entry in registry.METHODS.items():
        searched = entry.default is not None or isinstance(entry.space, str)
        assert not searched or needed(name) == ["optuna"], name


def test_every_package_that_benchmarks_import_has_an_extra_or_comes_with_the_library():
    root = Path(packages.__file__).parent
    text = (root.parent / "pyproject.toml").read_text()
    for extra in packages.EXTRAS:
        assert re.search(rf"^{extra} = \[", text, re.M), extra
    core = {"torch", "numpy", "scipy", "sklearn", "pytorch_metric_learning", "safetensors", "PIL",
            "tqdm", "rich", "matplotlib", "jinja2", "markupsafe", "jaxtyping"}  # fmt: skip
    own, elsewhere = {"benchmarks", "baselines", "laplace_metric"}, {"faiss", "httpx", "psutil"}
    known = core | own | elsewhere | {*packages.EXTRA_OF, *whole_run.RIVALS}
    known |= sys.stdlib_module_names
    for path in root.rglob("*.py"):
        if "examples" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            unknown = {name.partition(".")[0] for name in names} - known
            assert not unknown, (path, unknown)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["retrieval", "--size", "smoke", "--pieces", "growing", "evidence"], "pretrained"),
        (["image-text", "--size", "smoke", "--pieces", "figures", "image-text"], "benchmarks"),
        (["costs", "--size", "smoke", "--pieces", "points", "export"], "export"),
    ],
)
def test_a_piece_that_lacks_a_package_stops_all_before_anything_runs(
    monkeypatch, tmp_path, capsys, words, missing
):
    without(monkeypatch, *packages.EXTRAS[missing])
    monkeypatch.setattr(registry.subprocess, "run", lambda *_, **__: pytest.fail("ran"))
    assert main([*words, "--cache", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert f"pip install -e '.[{missing}]'" in line
    assert not list(tmp_path.iterdir())


def test_pieces_of_which_nothing_is_missing_are_not_stopped(monkeypatch):
    without(monkeypatch, *packages.EXTRA_OF)
    ran = []
    monkeypatch.setattr(registry, "run_piece", lambda place, _: ran.append(place))
    assert main(["retrieval", "--size", "smoke", "--pieces", "growing"]) == 0
    assert main(["costs", "--pieces", "points"]) == 0
    assert ran == [COMMANDS["retrieval"].pieces["growing"], COMMANDS["costs"].pieces["points"]]
