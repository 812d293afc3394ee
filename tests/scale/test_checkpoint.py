"""A fit that is killed goes on where it was and ends in the same bits."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.distributed import _fit_on_disk as module
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.laplace.fit._executor import PassExecutor
from tests.scale.data import batches, embedder, network

SCRIPT = Path(__file__).with_name("killed.py")


PASS = "pass-0001.safetensors"


def start(folder: object, out: Path, seconds: float, structure="kron", hessian="fixed"):
    words = [sys.executable, SCRIPT, folder, out, structure, hessian, seconds]
    return subprocess.Popen([str(word) for word in words], stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen) -> None:
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error


@pytest.mark.parametrize(("structure", "hessian"), [("kron", "fixed"), ("diag", "full")])
def test_killed_at_any_moment_it_ends_in_the_same_bits(tmp_path, structure, hessian):
    finished(start("none", tmp_path / "whole", 0, structure, hessian))
    folder, out = tmp_path / "checkpoint", tmp_path / "resumed"
    killed = 0
    shard = "features/features.bin"
    for moment in (shard, "partial/0/statistics.json", "pass-0001*"):
        process = start(folder, out, 0.02, structure, hessian)
        while not any(folder.glob(moment)) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        process.stderr.close()
    assert killed >= 2
    finished(start(folder, out, 0.0, structure, hessian))
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()


class Stopped(Exception):
    pass


@pytest.mark.parametrize("number", [0, 1, 2])
def test_finished_passes_are_not_read_again(tmp_path, monkeypatch, number):
    loader = batches(dtype=torch.float32)
    whole = embedder(torch.float32).fit(loader, progress=False).hessian_
    how = {"progress": False, "checkpoint_dir": tmp_path}
    keep, read = module.Checkpoint.keep, PassExecutor._read

    def stop_behind(self, at, statistics):
        keep(self, at, statistics)
        if at == number:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(module.Checkpoint, "keep", stop_behind)
        with pytest.raises(Stopped):
            embedder(torch.float32).fit(loader, **how)
    numbers = []
    monkeypatch.setattr(
        PassExecutor, "_read", lambda self, at, task: (numbers.append(at), read(self, at, task))[1]
    )
    resumed = embedder(torch.float32).fit(loader, **how).hessian_
    assert torch.equal(resumed.eigenvalues, whole.eigenvalues)
    assert numbers[0] == number + 1  # earlier passes come from the folder
    assert numbers == list(range(number + 1, numbers[-1] + 1))
    numbers.clear()
    again = embedder(torch.float32).fit(loader, **how).hessian_
    assert torch.equal(again.eigenvalues, whole.eigenvalues)
    assert not numbers


def fit(folder: Path, loader=None, **settings) -> LaplaceEmbedder:
    loader = batches() if loader is None else loader
    return embedder(**settings).fit(loader, progress=False, checkpoint_dir=folder)


def test_another_fit_is_refused(tmp_path):
    fit(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(FileFormatError, match=r"another fit.*'fixed' .*'full' here"):
        fit(tmp_path, hessian="full")
    model = network()
    with torch.no_grad():
        model[0].bias += 1
    with pytest.raises(FileFormatError, match="another fit: model"):
        LaplaceEmbedder(model).fit(batches(), progress=False, checkpoint_dir=tmp_path)
    with pytest.raises(FileFormatError, match="dtype.*'None' there.*'torch.float32'"):
        embedder().fit(batches(), progress=False, checkpoint_dir=tmp_path, dtype=torch.float32)
    with pytest.raises(FileFormatError, match="another fit: reference"):
        embedder().fit(batches(), progress=False, checkpoint_dir=tmp_path, reference=20)
    tanh = torch.nn.Sequential(network()[0], torch.nn.Tanh())  # the same weights, another model
    with pytest.raises(FileFormatError, match="another fit: model"):
        LaplaceEmbedder(tanh, head="append").fit(batches(), progress=False, checkpoint_dir=tmp_path)
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    other = embedder(prior_precision=7.0)  # no sum depends on the prior
    assert other.fit(batches(), progress=False, checkpoint_dir=tmp_path).posterior_ is not None


def test_a_folder_in_use_is_refused(tmp_path):
    holds = module.Checkpoint(tmp_path, {})
    with pytest.raises(InputError, match="another process"):
        module.Checkpoint(tmp_path, {})
    holds.close()
    module.Checkpoint(tmp_path, {}).close()


def test_a_finished_fit_removes_what_a_killed_one_left(tmp_path):
    fit(tmp_path)
    assert not list(tmp_path.rglob(".*"))
    (tmp_path / ".lock").touch()
    for name in ("checkpoint", "pass-0001"):
        (tmp_path / f".{name}.safetensors.0123456789abcdef.tmp").touch()
    fit(tmp_path)
    assert not list(tmp_path.rglob(".*"))


def test_lost_features_are_not_made_anew(tmp_path):
    fit(tmp_path)
    shutil.rmtree(tmp_path / "features")
    with pytest.raises(FileFormatError, match="features is missing"):
        fit(tmp_path)


def test_other_data_are_refused(tmp_path, monkeypatch):
    class Ends(list):
        def __iter__(self):
            yield from list.__iter__(self)
            raise Stopped

    monkeypatch.setattr(module, "SECONDS", 0.0)
    with pytest.raises(Stopped):
        fit(tmp_path, Ends(batches()[:3]))
    wrong = batches()
    wrong[1], wrong[2] = wrong[2], wrong[1]
    with pytest.raises(InputError, match="differ.*those in checkpoint_dir"):
        fit(tmp_path, wrong)
    with pytest.raises(InputError, match="differ from those"):
        fit(tmp_path, batches(60))
    with pytest.raises(InputError, match="differ from those"):
        fit(tmp_path, batches()[:2])
    other = [(h + 1, labels) for h, labels in batches()]
    with pytest.raises(InputError, match="differ from those"):
        fit(tmp_path, other)
    resumed = fit(tmp_path).hessian_.eigenvalues
    assert torch.equal(resumed, embedder().fit(batches(), progress=False).hessian_.eigenvalues)


def test_other_inputs_of_a_finished_reading_are_refused(tmp_path):
    """The labels of all batches are compared then, and the features of the first and the last."""
    fit(tmp_path)
    known = batches()
    assert len(known) > 2
    moved = [(h + 1, labels) for h, labels in known]
    flipped = [(h, labels.flip(0)) for h, labels in known]
    more = (known[0][0][:1], known[0][1][:1])
    for other in (
        moved,
        [*known[:-1], moved[-1]],
        [known[0], flipped[1], *known[2:]],
        known[:-1],
        [*known, more],
    ):
        with pytest.raises(InputError, match="differ.*those in checkpoint_dir"):
            fit(tmp_path, other)
    fit(tmp_path, known)


def test_other_labels_of_a_finished_reading_of_arrays_are_refused(tmp_path):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(600, 7, generator=g, dtype=torch.float64)
    y = torch.randint(3, (600,), generator=g)
    one, calls = embedder(), []
    one.fit(x, y, checkpoint_dir=tmp_path)
    for n in (300, 256):  # of 256 the first batch is the whole
        with pytest.raises(InputError, match="differ.*those in checkpoint_dir"):
            embedder().fit(x[:n], y[:n], checkpoint_dir=tmp_path)
    with pytest.raises(InputError, match="differ.*those in checkpoint_dir"):
        embedder().fit(x, torch.cat([y[:256], y[256:].flip(0)]), checkpoint_dir=tmp_path)
    again = embedder()
    again.model.register_forward_hook(lambda _module, args, _out: calls.append(args[0]))
    assert torch.equal(
        again.fit(x, y, checkpoint_dir=tmp_path).hessian_.eigenvalues, one.hessian_.eigenvalues
    )
    assert not any(torch.equal(seen, x[256:512]) for seen in calls)  # the model need not run


def test_a_pass_of_another_fit_is_refused(tmp_path):
    fit(tmp_path / "a", hessian="fixed")
    fit(tmp_path / "b", hessian="positives")
    (tmp_path / "b" / PASS).replace(tmp_path / "a" / PASS)
    with pytest.raises(FileFormatError, match="pass-0001.safetensors.*another fit"):
        fit(tmp_path / "a", hessian="fixed")


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(FileFormatError, match="choose.*empty folder"):
        fit(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_reference_points_are_drawn_once(tmp_path):
    how = {"margin": 0.9, "structure": "diag"}
    embedders = []
    for _ in range(2):
        one = embedder(**how)
        one.fit(batches(), progress=False, checkpoint_dir=tmp_path, reference=80)
        embedders.append(one.hessian_)
        (tmp_path / PASS).unlink()
    assert torch.equal(embedders[0].eigenvalues, embedders[1].eigenvalues)
