"""Draws around an embedding: a clear input, an ambiguous one, and one unlike anything known.

python -m benchmarks posterior --pieces draws --data DIR
"""

from __future__ import annotations

from argparse import Namespace

import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import Tensor, nn

from benchmarks.datasets import load
from benchmarks.plots import DrawnInput, draws_plot, headed, save_png
from benchmarks.records import FIGURES
from laplace_metric import LaplaceEmbedder
from laplace_metric.training import train_embedder

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
           "boot")  # fmt: skip
N_TRAINED, N_ITEMS, N_QUERIES, BATCH, EPOCHS = 5_000, 1_500, 1_000, 128, 12
N_DRAWS = 200


def network(x: Tensor, y: Tensor) -> nn.Sequential:
    """Train a network with embeddings of two numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(576, 64),
        nn.ReLU(),
        nn.Linear(64, 2, bias=False),  # the loss does not determine a bias, which moves all alike
    )
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    train_embedder(model, batches, ContrastiveLoss(), epochs=EPOCHS)
    return model.eval()


def images(name: str, data: str | None) -> tuple[Tensor, Tensor]:
    """Return test images [N, 1, 28, 28] in [0, 1] and labels, in a random order."""
    found = load(name, "test", data)
    x, y = torch.as_tensor(found.images), torch.as_tensor(found.labels).long()
    rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[rows].float() / (255 if x.dtype == torch.uint8 else 1), y[rows]


def run(options: Namespace) -> None:
    """Choose three inputs as ``retrieval --pieces questions`` does, and draw their embeddings.

    Spreads of draws choose none of them: of new clothes the lowest ambiguity and epistemic number,
    and the highest ambiguity where the epistemic number is below its median; of characters the
    highest epistemic number.
    """
    (x, y), (characters, _) = images("fashion-mnist", options.data), images("kmnist", options.data)
    model = network(x[:N_TRAINED], y[:N_TRAINED])
    embedder = LaplaceEmbedder(model, distance="euclidean", hessian="positives")
    embedder.fit(x[:N_TRAINED], y[:N_TRAINED], progress=False)
    items = slice(N_TRAINED, N_TRAINED + N_ITEMS)
    rest = slice(N_TRAINED + N_ITEMS, N_TRAINED + N_ITEMS + N_QUERIES)
    queries, strange = x[rest], characters[:N_QUERIES]
    known, foreign = embedder(queries), embedder(strange)
    familiar = known.epistemic < known.epistemic.median()
    clear = (known.ambiguity + known.epistemic).masked_fill(~familiar, torch.inf).argmin()
    unsure = known.ambiguity.masked_fill(~familiar, -torch.inf).argmax()
    odd = foreign.epistemic.argmax()
    chosen = torch.stack([queries[clear], queries[unsure], strange[odd]])
    names = [
        f"clear: a {CLASSES[y[rest][clear]]}",
        f"ambiguous: a {CLASSES[y[rest][unsure]]}",
        "unfamiliar: a character",
    ]
    found, usual = embedder(chosen), known.uncertainty.median()
    draws = embedder.sample(chosen, N_DRAWS, seed=0)
    assert found.ambiguity is not None
    drawn = [
        DrawnInput(
            f"{name}\nuncertainty {float(found.uncertainty[i] / usual):.1f}\n"
            f"ambiguity {float(found.ambiguity[i]):.2f}",
            chosen[i, 0].numpy(),
            found.mean[i].numpy(),
            draws[:, i].numpy(),
        )
        for i, name in enumerate(names)
    ]
    background = embedder(x[items]).mean.numpy()
    figure = draws_plot(drawn, background, [CLASSES[c] for c in y[items].tolist()], CLASSES)
    note = (
        "A network of clothes whose embeddings have two numbers. Faint points: new clothes.\n"
        f"Crosses: means. Clouds: {N_DRAWS} draws of the head's weights embed each input.\n"
        "Uncertainty 1 is the median of 1,000 new clothes."
    )
    headed(figure, "Where do draws from the posterior put an input?", note)
    save_png(figure, (options.output or FIGURES) / "posterior-draws.png")
