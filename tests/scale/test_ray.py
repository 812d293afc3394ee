"""Both forms of the Ray example give the posterior of one process; two CPUs, one small cluster."""

from __future__ import annotations

import fcntl
import itertools
import logging
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import InputError, LabelError
from tests.scale import page
from tests.scale.data import N, batches, covariances, difference, embedder, points

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytest.importorskip("pyarrow", reason="the extra 'ray' is not installed: Ray Data needs pyarrow")

from benchmarks.examples import ray_fit  # noqa: E402

KIND = {"hessian": "positives", "structure": "kron", "temperature": 1.0}  # none keeps points
CUTS = (0, 7, 7, 120, N)
"""Of uneven shards, the second one empty."""


def visible(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if p.name[0] not in "._"}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Everything that Ray writes is in a folder of its own, with a short name for its sockets."""
    before = visible(Path.cwd())
    folder = tempfile.mkdtemp(prefix="ray")
    only = Path(tempfile.gettempdir(), "laplace-metric-one-ray-cluster")
    with only.open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes would share its ports
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one to ~/.ray
        try:
            ray.init(
                num_cpus=2,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=80 * 2**20,
                _temp_dir=folder,
            )
            logging.getLogger("ray.data").setLevel(logging.ERROR)
            ray.data.DataContext.get_current().enable_progress_bars = False
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
    assert visible(Path.cwd()) == before


@pytest.fixture(scope="module")
def whole() -> LaplaceEmbedder:
    return embedder(**KIND).fit(batches(), progress=False)


def shards(labels: torch.Tensor | None = None) -> list:
    h, y = points()
    y = y if labels is None else labels
    parts = [slice(*ends) for ends in itertools.pairwise(CUTS)]
    return [ray.put((h[part], y[part])) for part in parts]


def check(fitted: LaplaceEmbedder, whole: LaplaceEmbedder) -> None:
    assert fitted.fitted_.n_points == N
    assert difference(fitted.hessian_.to_dense(), whole.hessian_.to_dense()) < 1e-12
    assert difference(covariances(fitted), covariances(whole)) < 1e-11  # the inverse: conditioned


def test_rows_of_a_data_set_with_an_empty_block(whole):
    def all_but_a_block(batch):
        return {name: values[batch["labels"] >= 0] for name, values in batch.items()}

    h, y = points()
    padded = torch.cat([h, h[:N]]), torch.cat([y, torch.full_like(y, -1)])
    rows = ray_fit.rows_of(*padded, n_blocks=4).map_batches(all_but_a_block, batch_size=None)
    check(ray_fit.fit_dataset(embedder(**KIND), rows, batch_size=70), whole)


def test_an_error_of_a_worker_is_the_drivers():
    h, y = points()
    with pytest.raises(LabelError, match="dtype torch.float64"):
        ray_fit.fit_shards(embedder(**KIND), shards(y.double()), h[:2])
    with pytest.raises(InputError, match="at least.*one shard"):
        ray_fit.fit_shards(embedder(**KIND), [], h[:2])
    rows = ray_fit.rows_of(h, y.double(), n_blocks=2)
    with pytest.raises(Exception, match="dtype float64.*whole numbers"):
        ray_fit.fit_dataset(embedder(**KIND), rows)


def test_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = page.run(page.run({}), "ray")
    curvatures = [x.hessian_.diagonal() for x in (scope["plan"].result(), scope["embedder"])]
    assert difference(*curvatures) < 1e-12
