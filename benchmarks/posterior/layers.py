"""Search by earlier layers, and by several views: what each adds, on classes seen and unseen.

Small convolutional networks are trained on six of the ten classes of a set. They search new images
of these six, images of the other four, and other sets. Every ranking chooses its settings by the
labels of the items; "noise" has the isotropic posterior in place of the curvature's, and M^(-1/4)
the head's inputs whitened half by their own second moments, so that what a layer gives and what the
curvature gives are told apart. Then each query is five views of one
image, each degraded by noise, a hole, blur or a shift, of which none or a third are of another
image. Seed 0 was looked at while the method was built; the record has three others.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import torch
from pytorch_metric_learning import losses
from torch import Tensor, nn

from benchmarks.datasets import load
from benchmarks.records import folder_of, markdown, read_record, write_record
from laplace_metric import LaplaceEmbedder
from laplace_metric.search import Index, Predictive
from laplace_metric.training import train_embedder

NAME = "layers"
GREY = ("mnist", "fashion-mnist", "kmnist")
NETWORKS: tuple[tuple[str, str, int], ...] = (
    ("kmnist", "triplet", 16),
    ("fashion-mnist", "contrastive", 32),
    ("mnist", "InfoNCE", 16),
    ("cifar10", "InfoNCE", 32),
)
LOSSES: dict[str, Any] = {
    "triplet": lambda: losses.TripletMarginLoss(margin=0.2),
    "contrastive": losses.ContrastiveLoss,
    "InfoNCE": lambda: losses.SupConLoss(0.1),
}
SEEDS, KNOWN, EPOCHS, BATCH = (1, 2, 3), 6, 12, 128
N_TRAINED, N_ITEMS, N_QUERIES, N_VIEWS, WRONG = 3_000, 1_500, 800, 5, (0.0, 0.3)
NOISE = 1e6
RANKINGS: dict[str, Any] = {
    "mean": "mean",
    "noise": Predictive(prior=NOISE, centred=False, layer=False),
    "posterior": Predictive(layer=False),
    "noise and layer": Predictive(prior=NOISE, centred=False),
    "auto": "auto",
}
MOMENTS = "M^(-1/4)"
COLUMNS = ("mean", "noise", MOMENTS, "posterior", "noise and layer", "auto")
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.97)
QUERIES = ("one view", "mean of five", "of=")
Row = dict[str, Any]
Labelled = tuple[Tensor, Tensor]


class Network(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self, size: int, channels: int, side: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 32, 3, stride=2, padding=1)
        self.second = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(64 * (side // 8) ** 2, 128)
        self.head = nn.Linear(128, size)

    def forward(self, x: Tensor) -> Tensor:
        """Return embeddings [B, Z] of images [B, C, H, H]."""
        x = self.second(self.first(x).relu()).relu()
        return self.head(self.hidden(self.pool(x).flatten(1)).relu())


class _Epochs:
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[Labelled]:
        for rows in torch.randperm(len(self.x)).split(BATCH):
            yield self.x[rows], self.y[rows]


def images_of(name: str, data: Any) -> Labelled:
    """Images [N, C, H, H] from 0 to 1 and their labels."""
    images = load(name, "test", data)
    x = torch.as_tensor(images.images)
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    x = x.permute(0, 3, 1, 2) if x.shape[-1] == 3 else x
    return (x if x.ndim == 4 else x[:, None]), torch.as_tensor(images.labels).long()


def degraded(x: Tensor, source: torch.Generator) -> Tensor:
    """Images under noise, a hole, blur or a shift, each of a strength of its own."""
    side = x.shape[-1]

    def whole(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=source))

    out = []
    for image in x:
        strength = float(torch.rand((), generator=source))
        kind = whole(0, 3)
        if kind == 0:
            image = image + 0.9 * strength * torch.randn(image.shape, generator=source)
        elif kind == 1:
            n = int(1 + 0.75 * strength * side)
            i, j = whole(0, side - n), whole(0, side - n)
            image = image.clone()
            image[:, i : i + n, j : j + n] = 0
        elif kind == 2:
            r = int(1 + 4 * strength)
            image = nn.functional.avg_pool2d(image[None], 2 * r + 1, 1, r)[0]
        else:
            d = int(8 * strength)
            image = torch.roll(image, (whole(-d, d), whole(-d, d)), (1, 2))
        out.append(image)
    return torch.stack(out).clamp(0, 1)


def views_of(x: Tensor, others: Tensor, wrong: float, source: torch.Generator) -> Tensor:
    """Five degraded views of each image, a share of them of one of the others."""
    rows = x.repeat_interleave(N_VIEWS, 0)
    bad = torch.rand(len(rows), generator=source) < wrong
    rows[bad] = others[torch.randint(len(others), (int(bad.sum()),), generator=source)]
    return degraded(rows, source)


def right(index: Index, queries: Tensor, labels: Tensor, **how: Any) -> float:
    """Share of the queries whose nearest item is of their class."""
    found = index.search(queries, 1, **how).nearest
    return float((found == labels.numpy()).mean())


def rows_of(source: str, loss: str, size: int, seed: int, data: Any, small: bool) -> list[Row]:
    """Every ranking of each collection, and every kind of query of those of its own set."""
    x, y = images_of(source, data)
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    order, known = torch.randperm(len(x), generator=g), torch.randperm(10, generator=g)[:KNOWN]
    seen = torch.isin(y[order], known)
    mine, new = order[seen], order[~seen]
    model = Network(size, x.shape[1], x.shape[-1])
    n_items, n_queries = (200, 60) if small else (N_ITEMS, N_QUERIES)
    trained = mine[: 10 * BATCH if small else N_TRAINED]
    loader = _Epochs(x[trained], y[trained])
    train_embedder(model, loader, LOSSES[loss](), epochs=1 if small else EPOCHS)
    embedder = LaplaceEmbedder(model.eval()).fit(x[trained], y[trained])
    collections = {"seen": (x, y, mine[N_TRAINED:]), "unseen": (x, y, new)}
    if source in GREY:
        for name in GREY:
            if name != source:
                ox, oy = images_of(name, data)
                collections[f"foreign {name}"] = (ox, oy, torch.randperm(len(ox), generator=g))
    rows = []
    for name, (cx, cy, places) in collections.items():
        items, asked = places[:n_items], places[n_items : n_items + n_queries]
        row = {"network": f"{source}, {loss}, Z = {size}", "seed": seed, "set": name}
        for ranking, rank_by in RANKINGS.items():
            index = embedder.index(cx[items], cy[items], rank_by=rank_by, progress=False)
            chosen = str(index.ranking) if index.rank_by == "predictive" else "mean"
            first = right(index, cx[asked], cy[asked])
            rows.append({**row, "ranking": ranking, "chosen": chosen, "first": first})
        first = by_moments(embedder, (cx[items], cy[items]), (cx[asked], cy[asked]))
        rows.append({**row, "ranking": MOMENTS, "first": first})
        if name.startswith("foreign"):
            continue
        index = embedder.index(cx[items], cy[items], progress=False)
        for wrong in WRONG:
            views = views_of(cx[asked], cx[items], wrong, g)
            of = torch.arange(len(asked)).repeat_interleave(N_VIEWS)
            h = {"views": wrong, **row}
            rows += [
                {**h, "query": "one view", "first": right(index, views[::N_VIEWS], cy[asked])},
                {
                    **h,
                    "query": "mean of five",
                    "first": _of_means(index, embedder, views, cy[asked]),
                },
                {**h, "query": "of=", "first": right(index, views, cy[asked], of=of)},
            ]
    return rows


def by_moments(embedder: LaplaceEmbedder, items: Labelled, queries: Labelled) -> float:
    """First item right by [z; s M^(-1/4) h], M the items' second moment of h: no loss, no labels.

    The share of the squared length chooses among the labels of the items, one left out at a time.
    """
    (x, y), (asked, truth) = items, queries
    seen, new = embedder.activations(x), embedder.activations(asked)
    h, z = seen.features.double(), seen.raw.double()
    values, vectors = torch.linalg.eigh(h.mT @ h / len(h))
    root = vectors * values.clamp_min(1e-6 * float(values.max())) ** -0.25
    g = h @ root

    def joined(share: float, own: Tensor, other: Tensor) -> Tensor:
        scale = share / (1 - share) * z.square().sum(1).mean() / g.square().sum(1).mean()
        return nn.functional.normalize(torch.cat([own, scale.sqrt() * other], 1), dim=1)

    def found(share: float) -> float:
        v = joined(share, z, g)
        apart = torch.cdist(v, v).fill_diagonal_(torch.inf)
        return float((y[apart.argmin(1)] == y).double().mean())

    best = max(SHARES, key=found)
    v = joined(best, new.raw.double(), new.features.double() @ root)
    nearest = torch.cdist(v, joined(best, z, g)).argmin(1)
    return float((y[nearest] == truth).double().mean())


def _of_means(index: Index, embedder: LaplaceEmbedder, views: Tensor, labels: Tensor) -> float:
    """First item right, by the mean embedding of the views: what is done without this library."""
    z = nn.functional.normalize(embedder(views).mean, dim=1)
    mean = nn.functional.normalize(z.reshape(-1, N_VIEWS, z.shape[1]).mean(1), dim=1)
    nearest = torch.cdist(mean, index.items.encoded.mean).argmin(1)
    assert index.labels is not None
    return float((index.labels[nearest.numpy()] == labels.numpy()).mean())


def run(options: Namespace) -> None:
    """Train, search, and write the record."""
    small = options.size == "smoke"
    rows: list[Row] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for source, loss, size in NETWORKS:
            for seed in SEEDS[: 1 if small else None]:
                rows += rows_of(source, loss, size, seed, options.data, small)
    print(write_record(NAME, {"rows": rows}, folder_of(options)).name)
    print(table(folder_of(options)))
    print(views_table(folder_of(options)))


def _rows(folder: Any) -> list[Row]:
    found: list[Row] = (read_record(NAME) if folder is None else read_record(NAME, folder))["rows"]
    return found


def mean_of(rows: list[Row], **which: Any) -> float:
    """Mean of the first items right over the rows that have these values."""
    some = [row["first"] for row in rows if all(row.get(k) == v for k, v in which.items())]
    return sum(some) / len(some)


def table(folder: Any = None) -> str:
    """First item right by each ranking, means over networks and seeds."""
    rows = [row for row in _rows(folder) if "ranking" in row]
    rows = [{**row, "kind": row["set"].partition(" ")[0]} for row in rows]
    names = {"seen": "classes of the training", "unseen": "other classes", "foreign": "other sets"}
    lines = [
        [names[kind], *(f"{mean_of(rows, kind=kind, ranking=r):.3f}" for r in COLUMNS)]
        for kind in names
    ]
    return markdown(["items and queries", *COLUMNS], lines)


def views_table(folder: Any = None) -> str:
    """First item right of one view, of the mean of five embeddings, and of ``of=``."""
    rows = [row for row in _rows(folder) if "query" in row]
    names = {"seen": "classes of the training", "unseen": "other classes"}
    lines = [
        [
            name,
            f"{wrong:.0%}",
            *(f"{mean_of(rows, set=kind, views=wrong, query=query):.3f}" for query in QUERIES),
        ]
        for kind, name in names.items()
        for wrong in WRONG
    ]
    return markdown(["items and queries", "views of something else", *QUERIES], lines)
