"""torchrun: the posterior does not depend on the number of ranks, and nothing hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from laplace_metric.curvature import ContrastiveLoss
from laplace_metric.curvature._all_pairs import curvature_passes
from laplace_metric.errors import InputError
from laplace_metric.heads._backends import jacobian_of
from laplace_metric.laplace.fit._executor import PassExecutor
from laplace_metric.laplace.fit._fit_options import FitOptions
from laplace_metric.laplace.fit._fit_storage import InMemory
from laplace_metric.laplace.fit._processes import ONE_PROCESS
from laplace_metric.models._blocks import Block
from laplace_metric.models._feature_store import FeatureStore
from tests.scale.data import batches, difference, embedder, network
from tests.scale.ranks import FITS

SCRIPT = Path(__file__).with_name("ranks.py")


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[int, list]:
    """Of 1, 2 and 4 ranks: what each found and was told."""
    folder = tmp_path_factory.mktemp("ranks")
    found = {}
    for n in (1, 2, 4):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        words = [*launch, "--nproc-per-node", str(n), str(SCRIPT), str(folder / f"{n}.pt")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr[-4000:]
        found[n] = torch.load(folder / f"{n}.pt", weights_only=False)
    return found


@pytest.mark.parametrize("name", [*FITS, "float32", "reference", "checkpoint"])
def test_the_posterior_does_not_depend_on_the_number_of_ranks(told, name):
    alone = told[1][0][0][name]
    for n in (2, 4):
        for curvatures, _ in told[n]:
            assert torch.equal(curvatures[name], told[n][0][0][name])  # the same bits everywhere
        assert difference(told[n][0][0][name], alone) < 1e-12


@pytest.mark.parametrize("name", FITS)
def test_it_is_that_of_one_process(told, name):
    one = embedder(**FITS[name]).fit(batches(), progress=False).hessian_.to_dense()
    assert difference(told[1][0][0][name], one) < 1e-12


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bad_rank", "ShardError: rank {last} of {n} failed: NonFiniteError: the head's input"),
        ("other_weights", "ShardError: rank 1 of {n} has model '"),
        ("other_backbone", "ShardError: rank 1 of {n} has model '"),
        ("full_disk", "ShardError: rank 0 of {n} failed: OSError: no space left"),
        ("other_settings", "ShardError: rank 1 of {n} has hessian 'fixed', rank 0 'full'"),
        ("nothing", "EmptyLoaderError: no rank's loader"),
        ("batch_pairs", "InputError: distributed needs pairs='all'"),
    ],
)
def test_what_goes_wrong_is_told_on_every_rank(told, name, words):
    for n in (2, 4):
        expected = words.format(n=n, last=n - 1)
        for _, messages in told[n]:
            assert messages[name].startswith(expected)


def test_without_a_launcher_it_is_one_process():
    how = {"progress": False, "distributed": True}
    a = embedder().fit(batches(), **how).hessian_.eigenvalues
    b = embedder().fit(batches(), progress=False).hessian_.eigenvalues
    assert torch.equal(a, b)


def test_a_launcher_without_a_group_is_an_error(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="init_process_group"):
        embedder().fit(batches(), progress=False, distributed=True)


class ForgetfulStore(FeatureStore):
    """Leaves its last point out from the second reading on."""

    readings = 0

    def blocks(self):
        self.readings += 1
        for block in super().blocks():
            last = self.readings > 1 and block.stop == len(self)
            part = slice(0, len(block) - int(last))
            yield Block(block.start, block.features[part], block.labels[part])


def test_a_pass_that_reads_other_points_than_the_first_is_refused():
    store = ForgetfulStore()
    for number, (h, labels) in enumerate(batches()):
        store.append(h, labels, where=f"batch {number}")
    head = jacobian_of(network()[0], 4)
    loss = ContrastiveLoss.of("arccos", "fixed", normalized=False)
    executor = PassExecutor(store, ONE_PROCESS, InMemory(0))
    with pytest.raises(InputError, match=r"read 239.*first one 240"):
        executor.execute(curvature_passes(head, loss, "diag"))


def test_one_process_compares_its_own_points_not_a_copy_of_them():
    h, labels = batches()[0]
    store = FeatureStore.of(h, labels)
    loss = ContrastiveLoss.of("euclidean", "full", normalized=True, margin=0.5)
    (columns,) = PassExecutor(store, ONE_PROCESS, InMemory(0)).columns(loss, "diag", FitOptions())
    assert columns is store
