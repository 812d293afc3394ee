"""The command before it listens: packages, addresses, references, files that name others."""

from __future__ import annotations

import importlib
import socket
import warnings

import pytest
from PIL import Image

from laplace_metric.cli import main
from laplace_metric.cli._options import parser_of
from laplace_metric.cli._output import Reporter
from laplace_metric.cli.serve import _command as command
from laplace_metric.cli.serve import _service
from laplace_metric.cli.serve._guard import Limits
from laplace_metric.cli.serve._http import search_page
from laplace_metric.cli.serve._service import SearchService, ServedIndex
from laplace_metric.errors import InputError, LaplaceMetricWarning, MissingPackageError
from tests.cli.workshop import trusting
from tests.serve.conftest import options_of


@pytest.mark.parametrize("missing", ["fastapi", "python_multipart"])
def test_a_missing_package_is_named_with_the_extra(missing, monkeypatch, capsys):
    found = importlib.import_module

    def importing(name: str, *more):
        if name == missing:
            raise ModuleNotFoundError(name=name)
        return found(name, *more) if name.startswith("laplace_metric") else None

    monkeypatch.setattr(command, "import_module", importing)
    with pytest.raises(MissingPackageError, match=r"laplace-metric\[serve\]") as error:
        command.require_packages()
    assert missing.replace("_", "-") in str(error.value)
    assert main(["serve", "index"]) == 2
    assert "laplace-metric[serve]" in capsys.readouterr().err


def test_ports_that_cannot_be_listened_at():
    with command.listening("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        taken = listener.getsockname()[1]
        for host, port in [("127.0.0.1", taken), ("192.0.2.1", 0), ("127.0.0.1", 99_999)]:
            with pytest.raises(InputError, match=f"--host {host} --port {port}"):
                command.listening(host, port)


@pytest.mark.parametrize("text", ["short", "two words of a key", "ä" * 20])
def test_a_key_that_cannot_be_used_is_refused(text, tmp_path):
    path = tmp_path / "key"
    path.write_text(text)
    options = parser_of("serve").parse(["index", "--api-key-file", str(path)])
    with pytest.raises(InputError, match="16 to 4,096"):
        command.read_key(options)
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        command.read_key(options)


@pytest.mark.parametrize(
    ("host", "here"), [("127.0.0.1", True), ("localhost", True), ("::", False), ("box", False)]
)
def test_a_host_that_others_reach_needs_a_key(host, here):
    options = parser_of("serve").parse(["index", "--host", host])
    if here:
        assert command.read_key(options) is None
        return
    with pytest.raises(InputError, match="--insecure"):
        command.read_key(options)


def test_a_recipe_that_is_not_trusted_runs_nothing(shop, capsys, monkeypatch):
    monkeypatch.setattr(command, "require_packages", lambda: None)
    assert main(["serve", str(shop / "index"), "--quiet"]) == 2
    assert "--trust-recipe" in capsys.readouterr().err


def test_a_reference_has_both_signals(shop, start):
    service = start(shop, "--reference", str(shop / "queries"), "--window", "40")
    assert list(service.served.drift.evidence) == ["epistemic", "match probability"]
    assert list(start(shop).served.drift.evidence) == ["epistemic"]  # fewer than 1,000 calibrated
    with pytest.raises(InputError):  # the items themselves
        start(shop, "--reference", str(shop / "missing"))


def test_a_cross_fitted_index_is_served_without_a_drift_alarm(vectors, tmp_path, capsys):
    """Its own items are nearer to fewer items than new queries are: an alarm without drift."""
    build = [str(vectors / "items.npz"), "--posterior", str(vectors / "posterior")]
    how = ["--cross-fit", "2", "--output", str(tmp_path / "index"), "--quiet"]
    assert trusting(["index", *build, *how]) == 0
    limits = Limits()
    options, reporter = options_of(tmp_path), Reporter(quiet=False)
    service = SearchService(lambda: ServedIndex(options, limits, reporter), limits)
    try:
        assert service.served.drift is None
        told = capsys.readouterr().err
        assert "cross-fitting" in told
        assert "drift is not watched" in told
        assert "--reference DATA" in told
        assert "laplace_metric_monitor_watched 0" in service.metrics_text()
        assert "calibrated by cross-fitting" in search_page(service, {})
    finally:
        service.close()
    options = options_of(tmp_path, "--reference", str(vectors / "queries.npy"))
    assert ServedIndex(options, limits, reporter).drift is not None


def test_warnings_of_the_first_load_are_notes_and_later_ones_are_not_shown(monkeypatch, capsys):
    before = list(warnings.filters)

    class Loaded:
        index = ()

        def __init__(self, *_):
            warnings.warn("of the load", LaplaceMetricWarning, stacklevel=1)

    def run(service, *_):
        warnings.warn("of a request", LaplaceMetricWarning, stacklevel=1)
        warnings.warn("of an image", Image.DecompressionBombWarning, stacklevel=1)
        service.close()

    monkeypatch.setattr(_service, "ServedIndex", Loaded)
    monkeypatch.setattr(command, "_run", run)
    monkeypatch.setattr(command, "require_packages", lambda: None)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        command.serve(parser_of("serve").parse(["index", "--port", "0"]))
    assert [str(one.message) for one in heard] == []
    assert capsys.readouterr().err.count("of the load") == 1
    assert warnings.filters == before
