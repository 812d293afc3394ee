"""A run that was interrupted ends with the same bits as one that was not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss, ContrastiveLoss
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.samplers import MPerClassSampler
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from laplace_metric import LaplaceEmbedder, OnlineLaplace
from laplace_metric import io as files
from laplace_metric.errors import FileFormatError, InputError
from laplace_metric.online._state_tree import flatten, unflatten
from laplace_metric.online._training_on_disk import CHECKPOINT, FILE
from tests.saved_files import edit, of_version

EPOCHS, STEPS = 3, 4  # 50 points in batches of 16


class Interrupted(Exception):
    """Thrown by the loss."""


class Loss(ArcFaceLoss):
    """Has weights of its own; at one call it fails, or kills the process."""

    def __init__(self, at: int | None = None, kill: bool = False) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            super().__init__(4, 3)
        self._at, self._kill, self.calls = at, kill, 0  # no settings of a loss

    def forward(self, *args: Tensor) -> Tensor:
        if self.calls == self._at:
            if self._kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Interrupted
        self.calls += 1
        return super().forward(*args)


def network(seed: int = 0, width: int = 8) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(6, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Dropout(0.4),
            nn.Linear(width, 3),
        )


def data(n: int = 50) -> TensorDataset:
    g = torch.Generator().manual_seed(1)
    labels = torch.arange(n) % 4
    return TensorDataset(torch.randn(n, 6, generator=g) + labels[:, None], labels)


def shuffling(kind: str) -> DataLoader[tuple[Tensor, ...]]:
    """Loaders whose order comes from their own generator, from the global one, and from numpy."""
    if kind == "numpy":
        sampler = MPerClassSampler(data().tensors[1], 4, 16, 64)
        return DataLoader(data(), batch_size=16, sampler=sampler)
    generator = torch.Generator().manual_seed(2) if kind == "own" else None
    return DataLoader(data(), batch_size=16, shuffle=True, generator=generator)


def run(
    folder: Path | None,
    loss: Loss,
    model: nn.Module | None = None,
    loader: object = None,
    epochs: int = EPOCHS,
    adam: type[torch.optim.Optimizer] = torch.optim.Adam,
    **options: object,
) -> LaplaceEmbedder:
    """One fit with everything that has a state."""
    model = network() if model is None else model
    optimizer = adam([*model.parameters(), *loss.parameters()], lr=0.01)  # type: ignore[call-arg]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    online = OnlineLaplace(model, decay=0.8, hessian="positives", samples=2, refit=False, **options)  # type: ignore[arg-type]
    return online.fit(
        shuffling("own") if loader is None else loader,  # type: ignore[arg-type]
        loss,
        epochs=epochs,
        optimizer=optimizer,
        scheduler=scheduler,
        seed=torch.Generator().manual_seed(3),
        progress=False,
        checkpoint=folder,
    )


def content(folder: Path) -> tuple[dict, dict[str, Tensor]]:
    """All that a checkpoint holds: states of model, loss, optimizer, H, history, random states."""
    return files.read(folder / FILE, CHECKPOINT)


def assert_same(a: Path, b: Path) -> None:
    (one, tensors), (two, others) = content(a), content(b)
    assert one == two
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[k], others[k]) for k in tensors)


@pytest.mark.parametrize(
    ("structure", "at"), [("diag", 1), ("kron", 9), ("full", 23), ("auto", 13)]
)
def test_resumes_to_the_same_bits(tmp_path, at, structure):
    """Interrupted in the first, the second and the third epoch (of four steps, two draws each)."""
    options = {"structure": structure, "refresh": 3}
    uninterrupted = run(tmp_path / "uninterrupted", Loss(), **options)
    model = network()
    with pytest.raises(Interrupted):
        run(tmp_path / "interrupted", Loss(at), model, **options)
    # the same process, a model whose weights have moved
    resumed = run(tmp_path / "interrupted", Loss(), model, **options)
    assert_same(tmp_path / "uninterrupted", tmp_path / "interrupted")
    for a, b in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(uninterrupted.hessian_.eigenvalues, resumed.hessian_.eigenvalues)
    assert uninterrupted.posterior_.n_effective == resumed.posterior_.n_effective == 50.0


@pytest.mark.parametrize(
    "options",
    [
        {"prior_precision": "evidence", "warmup": 1},
        {"recursion": "paper", "n_effective": "pairs"},
        {"structure": "auto", "positivity": "absolute"},
    ],
)
@pytest.mark.parametrize("at", [3, 13])
def test_resumes_the_prior_and_the_warm_up(tmp_path, at, options):
    uninterrupted = run(tmp_path / "uninterrupted", Loss(), **options)
    with pytest.raises(Interrupted):
        run(tmp_path / "interrupted", Loss(at), **options)
    resumed = run(tmp_path / "interrupted", Loss(), **options)
    assert_same(tmp_path / "uninterrupted", tmp_path / "interrupted")
    assert resumed.posterior_.prior_precision == uninterrupted.posterior_.prior_precision


@pytest.mark.parametrize("kind", ["own", "global", "numpy"])
def test_resumes_whatever_shuffles(tmp_path, kind):
    run(tmp_path / "uninterrupted", Loss(), loader=shuffling(kind))
    for at in (13, 5):
        with pytest.raises(Interrupted):
            run(tmp_path / "interrupted", Loss(at), loader=shuffling(kind))
    run(tmp_path / "interrupted", Loss(), loader=shuffling(kind))
    assert_same(tmp_path / "uninterrupted", tmp_path / "interrupted")


def test_checkpoints_change_nothing(tmp_path):
    without, written = run(None, Loss()), run(tmp_path, Loss())
    for a, b in zip(without.model.parameters(), written.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_killed_process_resumes_to_the_same_bits(tmp_path):
    """Each in a process of its own, with the same number of threads."""
    interrupted = tmp_path / "interrupted"
    assert in_own_process(tmp_path / "uninterrupted", "Loss()") == 0
    assert in_own_process(interrupted, "Loss(13, kill=True)") == -signal.SIGKILL
    state = content(interrupted)[0]["state"]["dict"]
    progress = dict(dict(state)["progress"]["dict"])
    assert (progress["epoch"], progress["steps"]) == (1, 4)
    assert in_own_process(interrupted, "Loss()") == 0
    assert_same(tmp_path / "uninterrupted", interrupted)
    assert [path.name for path in interrupted.iterdir()] == [FILE]


def in_own_process(folder: Path, loss: str) -> int:
    """``run`` in a fresh interpreter; its exit status."""
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        f"from test_checkpoint import Loss, run\nrun(Path(sys.argv[2]), {loss})\n"
    )
    arguments = [str(Path(__file__).parent), str(folder)]
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, timeout=120, check=False).returncode


def test_finished_run_returns_at_once_and_goes_on_with_more_epochs(tmp_path):
    first = run(tmp_path / "a", Loss())
    loss, fresh = Loss(at=0), network(seed=4)
    loaded = run(tmp_path / "a", loss, fresh)
    assert loss.calls == 0
    x = data().tensors[0]
    for a, b in zip(first.model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)
    first.model.eval(), fresh.eval()
    assert torch.equal(first(x).variance, loaded(x).variance)
    run(tmp_path / "a", Loss(), epochs=EPOCHS + 1)
    run(tmp_path / "b", Loss(), epochs=EPOCHS + 1)
    assert_same(tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileFormatError, match=r"has 4 epochs.*epochs=3"):
        run(tmp_path / "a", Loss())


SHORT = DataLoader(data(20), batch_size=16, shuffle=True)


def test_checkpoint_of_another_run_is_refused(tmp_path):
    run(tmp_path, Loss(), epochs=1)
    before = (tmp_path / FILE).read_bytes()
    for now, message in (
        ({"model": network(width=9)}, r"model\.0\.weight is \[\[8, 6\].* and \[\[9, 6\]"),
        ({"prior_precision": 2.0}, r"prior_precision is 100\.0 there and 2\.0 here"),
        ({"structure": "kron"}, "structure is 'diag' there and 'kron' here"),
        ({"loader": SHORT}, "loader length is 4 there and 2 here"),
        ({"head": "4"}, "head is None there and '4' here"),
        ({"warmup": 1}, "warmup is 0 there and 1 here"),
        ({"recursion": "paper"}, "recursion is 'average' there and 'paper' here"),
        ({"n_effective": "pairs"}, "count is 'points' there and 'pairs' here"),
        ({"prior_precision": "evidence"}, "of another run"),
        ({"adam": torch.optim.AdamW}, r"names\.optimizer is 'Adam' there and 'AdamW' here"),
    ):
        with pytest.raises(FileFormatError, match=message):
            run(tmp_path, Loss(), **now)
    assert (tmp_path / FILE).read_bytes() == before


def small(activation: nn.Module | None = None, dropout: float = 0.0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(6, 8), activation or nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)]
        return nn.Sequential(*layers)


def by_size(size: int = 16, n: int = 50, m: int | None = None) -> DataLoader[tuple[Tensor, ...]]:
    if m is None:
        return DataLoader(data(n), batch_size=size, shuffle=True)
    return DataLoader(
        data(n), batch_size=size, sampler=MPerClassSampler(data(n).tensors[1], m, size, 64)
    )


def mined(folder: Path, **changes: object) -> LaplaceEmbedder:
    given = {"model": None, "loss": None, "margin": 0.2, "loader": None, "seed": 0} | changes
    miner = TripletMarginMiner(margin=given["margin"], collect_stats=True)  # it counts triplets
    online = OnlineLaplace(given["model"] or small(), pairs=miner, refit=False)
    return online.fit(
        given["loader"] or by_size(),
        given["loss"] or ContrastiveLoss(),
        epochs=changes.get("epochs", 1),
        seed=given["seed"],
        checkpoint=folder,
    )


def test_settings_that_no_weight_tells_are_compared(tmp_path):
    mined(tmp_path)
    for now, message in (
        ({"loss": ContrastiveLoss(neg_margin=0.3)}, "settings of the loss"),
        ({"margin": 0.9}, "settings of the miner"),
        ({"model": small(nn.Tanh())}, "structure of the model.1"),
        ({"model": small(dropout=0.5)}, "structure of the model.2"),
        ({"loader": by_size(15)}, "batch size is 16 there and 15"),
        ({"loader": by_size(n=60)}, "data set length is 50 there and 60"),
        ({"loader": by_size(m=4)}, "samplers"),
        ({"seed": 1}, "seed is 0 there and 1"),
    ):
        with pytest.raises(FileFormatError, match=f"another run.*{message}"):
            mined(tmp_path, **now)
    mined(tmp_path, epochs=2)


def test_a_loader_that_is_refused_stays_as_it_is(tmp_path):
    mined(tmp_path, loader=by_size(m=4))
    model, loader = small(), by_size(m=8)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(FileFormatError, match="MPerClassSampler has m_per_class=8"):
        mined(tmp_path, model=model, loader=loader)
    assert loader.sampler.m_per_class == 8
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


class Turning(torch.utils.data.Sampler[int]):
    """Begins elsewhere in each epoch, by a counter of its own."""

    def __init__(self) -> None:
        self.turn = 0

    def __iter__(self):
        self.turn = self.turn + 1
        yield from torch.arange(50).roll(7 * self.turn).tolist()

    def __len__(self) -> int:
        return 50


def test_a_counter_of_a_sampler_goes_on(tmp_path):
    def loader() -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(data(), batch_size=16, sampler=Turning())

    run(tmp_path / "uninterrupted", Loss(), loader=loader())
    with pytest.raises(Interrupted):
        run(tmp_path / "interrupted", Loss(13), loader=loader())
    run(tmp_path / "interrupted", Loss(), loader=loader())
    assert_same(tmp_path / "uninterrupted", tmp_path / "interrupted")


def test_damaged_checkpoint_is_refused(tmp_path):
    run(tmp_path, Loss(), epochs=1)
    path = tmp_path / FILE
    whole = path.read_bytes()
    for change in ({"state": {"dict": []}}, {"state": 3}, {"run": None}):
        edit(path, "training", **change)
        with pytest.raises(FileFormatError):
            run(tmp_path, Loss(), epochs=1)
        path.write_bytes(whole)
    of_version(path, "training", 99)
    with pytest.raises(FileFormatError, match="checkpoint.*version 99"):
        run(tmp_path, Loss(), epochs=1)
    path.write_bytes(whole[:-1])
    with pytest.raises(FileFormatError, match="bytes of arrays"):
        run(tmp_path, Loss(), epochs=1)


def test_a_finished_run_removes_what_a_killed_one_left(tmp_path):
    run(tmp_path, Loss(), epochs=1)
    (tmp_path / f".{FILE}.0123456789abcdef.tmp").touch()
    run(tmp_path, Loss(at=0), epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


# Nested values as JSON and tensors.


def test_round_trip_through_json():
    alias = torch.arange(6.0)
    tree = {
        0: {"step": torch.tensor(2.0), "moment": alias.view(2, 3).mT, "same": alias},
        "groups": [{"lr": 0.1 + 0.2, "betas": (0.9, 0.999), "off": None, "on": True}],
        "nan": float("inf"),
        "empty": [{}, (), []],
    }
    content, tensors = flatten(tree, "t")
    back = unflatten(json.loads(json.dumps(content)), tensors)
    assert set(back) == set(tree)
    assert back["groups"] == tree["groups"]
    assert isinstance(back["groups"][0]["betas"], tuple)
    assert back["nan"] == float("inf")
    assert back["empty"] == tree["empty"]
    assert all(torch.equal(back[0][k], tree[0][k]) for k in tree[0])
    assert len({t.data_ptr() for t in tensors.values()}) == 3


def test_what_cannot_be_written_and_what_cannot_be_read():
    with pytest.raises(InputError, match="function cannot be"):
        flatten({"f": len.__class__ and (lambda: None)})
    for bad in ({"tensor": "x"}, {"set": []}, {}, [1], {"dict": [[1]]}):
        with pytest.raises(FileFormatError, match="damaged"):
            unflatten(bad, {})
