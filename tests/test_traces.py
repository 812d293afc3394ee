"""A whole gallery's uncertainties are those of its batches, without their distributions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from laplace_metric import LaplaceEmbedder
from laplace_metric.errors import EmptyLoaderError, InputError, NotFittedError
from laplace_metric.laplace import _predictive_covariance, _traces
from laplace_metric.laplace._traces import traced, traces_of

D, Z = 7, 5
HEADS = {
    "linear": lambda: nn.Linear(D, Z),
    "no bias": lambda: nn.Linear(D, Z, bias=False),
    "one output": lambda: nn.Linear(D, 1),
    "chain": lambda: nn.Sequential(nn.Linear(D, 6), nn.ReLU(), nn.Linear(6, Z)),
    "chain without bias": lambda: nn.Sequential(
        nn.Linear(D, 4, bias=False), nn.Tanh(), nn.Linear(4, 6), nn.GELU(),
        nn.Linear(6, Z, bias=False),
    ),
    "black box": lambda: nn.Sequential(nn.Linear(D, Z), nn.BatchNorm1d(Z)),
}  # fmt: skip
CASES = [
    (head, structure, distance)
    for head in HEADS
    for structure in ("diag", "kron", "full")
    for distance in ("euclidean", "arccos")
    if (head, structure) != ("black box", "kron")
    if head != "one output" or (distance == "euclidean" and structure != "full")
]
EXACT = {"rtol": 1e-12, "atol": 1e-14}


class Counting(nn.Module):
    """Counts the inputs that go through."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.seen = module, 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.module(x)


def fitted(
    head: str, structure: str, distance: str, dtype: torch.dtype = torch.float64
) -> tuple[LaplaceEmbedder, Tensor]:
    torch.manual_seed(0)
    model = Counting(HEADS[head]()).to(dtype).eval()
    x, y = torch.randn(200, D, dtype=dtype), torch.arange(200) % 4
    options = {"hessian": "positives", "n_effective": 200.0, "distance": distance}
    embedder = LaplaceEmbedder(model, head=model.module, structure=structure, **options)
    return embedder.fit([(x, y)], progress=False), x


@pytest.fixture
def _small_blocks(monkeypatch):
    """Several blocks, the last one short; several strips, the last one narrow."""
    monkeypatch.setattr(_traces, "CORE_BYTES", 1)
    monkeypatch.setattr(_traces, "STRIP", 3)
    for module in (_traces,):
        monkeypatch.setattr(module, "block_rows", lambda *_: 64)
    monkeypatch.setattr(_predictive_covariance, "JACOBIAN_BYTES", 64 * 4 * Z * Z * (D + 1))


@pytest.mark.usefixtures("_small_blocks")
@pytest.mark.parametrize(("head", "structure", "distance"), CASES)
def test_they_are_those_of_the_embeddings(head, structure, distance):
    embedder, x = fitted(head, structure, distance)
    expected = embedder(x).uncertainty
    torch.testing.assert_close(embedder.uncertainties([x], progress=False), expected, **EXACT)
    head, posterior = embedder.fitted_.jacobian, embedder.posterior_
    for raw in (None, head.forward(x)):
        ours = traced(traces_of(head, posterior), x, raw, spherical=distance == "arccos")
        torch.testing.assert_close(ours, expected, **EXACT)


@pytest.mark.parametrize("width", [256, 257, 300, 700])
@pytest.mark.parametrize("bias", [True, False])
def test_every_column_of_a_wide_head_counts(width, bias):
    """Of the strips of the triangular L as they are, of which a wide head has three and more."""
    assert width >= 2 * _traces.STRIP
    torch.manual_seed(0)
    model = nn.Linear(width, Z, bias=bias).double()
    x, y = torch.randn(60, width, dtype=torch.float64), torch.arange(60) % 4
    x[:, -40:] *= 5  # what the last columns hold is no small part
    options = {"hessian": "positives", "structure": "kron", "distance": "euclidean"}
    embedder = LaplaceEmbedder(model, **options).fit([(x, y)], progress=False)
    expected = embedder(x).uncertainty
    torch.testing.assert_close(embedder.uncertainties([x], progress=False), expected, **EXACT)
    index = embedder.index(x, y, progress=False)
    torch.testing.assert_close(index.search(x[:9], k=1).uncertainty, expected[:9], **EXACT)


@pytest.mark.parametrize("structure", ["diag", "kron", "full"])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_to_rounding_in_single_precision(structure, distance):
    embedder, x = fitted("linear", structure, distance, torch.float32)
    ours = embedder.uncertainties([x], progress=False)
    torch.testing.assert_close(ours, embedder(x).uncertainty, rtol=1e-5, atol=0)


def test_every_kind_of_batch_runs_once():
    embedder, x = fitted("linear", "diag", "arccos")
    y, before = torch.arange(50), embedder.model.seen
    batches = [x[:50], (x[50:100], y), [x[100:150], y.tolist()], (x[150:],)]
    ours = embedder.uncertainties(iter(batches), progress=False)
    assert embedder.model.seen - before == len(x)
    torch.testing.assert_close(ours, embedder(x).uncertainty, **EXACT)


def test_a_pair_of_inputs_is_no_labelled_batch():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(D, Z)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head(a + b)

    a, b, y = torch.randn(20, D), torch.randn(20, D), torch.arange(20) % 4
    embedder = LaplaceEmbedder(Sum(), structure="diag").fit([((a, b), y)], progress=False)
    expected = embedder((a, b)).uncertainty
    for batch in ((a, b), ((a, b), y)):
        torch.testing.assert_close(embedder.uncertainties([batch], progress=False), expected)


def test_an_embedding_of_length_zero_has_no_direction():
    embedder, x = fitted("no bias", "diag", "arccos")
    x[3] = 0
    with pytest.raises(InputError, match="1 of 200.*batch.*all zeros"):
        embedder(x)
    head, posterior = embedder.fitted_.jacobian, embedder.posterior_
    ours = traced(traces_of(head, posterior), x, torch.zeros(200, Z).double(), spherical=True)
    assert ours[:3].isinf().all()
    assert ours[3].isnan()  # its variance is zero as well; callers check rows first


def test_what_cannot_be_read_is_said():
    embedder, x = fitted("linear", "diag", "arccos")
    with pytest.raises(InputError, match="iterable of batches"):
        embedder.uncertainties(x)
    with pytest.raises(EmptyLoaderError):
        embedder.uncertainties([], progress=False)
    with pytest.raises(NotFittedError):
        LaplaceEmbedder(nn.Linear(D, Z)).uncertainties([x])
