"""Is the variance true? Heads trained again on bootstrap samples, beside the posterior.

Every network of ``problems`` keeps its body, and its head goes on learning on 16 samples of the
fitted points, drawn with replacement, at a rate that falls to zero. So the squared distance of a
pair has a standard deviation over heads, which no posterior had a part in. It is compared with the
one that each posterior predicts for the pair, in closed form:

    one observation     the default of the library
    trained weights     the prior precision P / |theta|^2, at the same temperature
    noise               N(theta, s^2 I): weights without data

Pairs are queries with their nearest item and with a random one. Larger distances spread more under
any posterior, so the rank correlation is a partial one, given the distance under the trained head,
and of posteriors that were scaled to one width. Heads start from the trained weights: directions
that the loss leaves open hardly move, and are not tested. Size is the median ratio of the predicted
standard deviation to that over heads, at the fitted temperature; noise has none.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm

from benchmarks.posterior.kernels import embedder_of, under_priors
from benchmarks.posterior.problems import BATCH, LOSSES, NETWORKS, Collection, Network, trained
from benchmarks.posterior.tables import NOISE, VARIANCE, variance_table
from benchmarks.records import folder_of, write_record
from laplace_metric import LaplaceEmbedder
from laplace_metric.training import train_embedder

SEEDS, N_HEADS, EPOCHS, RATE, STRONG, NARROW = 3, 16, 8, 1e-3, 1e12, 1e-4
Row = dict[str, Any]


def bootstrapped(network: Network, head: nn.Linear, h: Tensor, y: Tensor) -> Tensor:
    """Weights [N_HEADS, P] of heads that go on learning from samples of the points."""
    heads = []
    for number in range(N_HEADS):
        source = torch.Generator().manual_seed(number)
        rows = torch.randint(len(h), (len(h),), generator=source)
        again = nn.Linear(head.in_features, head.out_features)
        again.load_state_dict(head.state_dict())
        batches = [(h[some], y[some]) for some in rows.split(BATCH)]
        torch.manual_seed(number)
        optimizer = torch.optim.Adam(again.parameters(), RATE)
        slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
        loss = LOSSES[network.loss]()
        train_embedder(again, batches, loss, epochs=EPOCHS, optimizer=optimizer, scheduler=slower)
        heads.append(parameters_to_vector(again.parameters()).detach())
    return torch.stack(heads)


def pairs_of(head: nn.Linear, collection: Collection) -> tuple[Tensor, Tensor]:
    """Head inputs of queries, twice, and of their nearest and of random items."""
    (items, _), (queries, _) = collection.items, collection.queries
    z, others = (nn.functional.normalize(head(x), dim=1) for x in (queries, items))
    nearest = (z @ others.mT).argmax(1)
    random = torch.randint(len(items), (len(queries),), generator=torch.Generator().manual_seed(0))
    return torch.cat([queries, queries]), items[torch.cat([nearest, random])]


def spread(embedder: LaplaceEmbedder, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Standard deviation [B] over heads of the squared distance of pairs."""
    forward, apart = embedder.fitted_.jacobian.forward_with, []
    for one in weights:
        a, b = (forward(side, one[None])[0] for side in (x, y))
        if embedder.spherical:
            a, b = (nn.functional.normalize(z, dim=1) for z in (a, b))
        apart.append((a - b).square().sum(1).double())
    return torch.stack(apart).std(0)


def compared(embedder: LaplaceEmbedder, weights: Tensor, x: Tensor, y: Tensor) -> Row:
    """Partial rank correlation and ratio of the predicted spread of pairs with that over heads."""
    over_heads = spread(embedder, weights, x, y)
    apart = (embedder(x).mean - embedder(y).mean).square().sum(1)
    return {
        "rank": partial(over_heads, predicted(narrow(embedder, x), x, y), apart),
        "size": float((predicted(embedder, x, y) / over_heads).median()),
    }


def predicted(embedder: LaplaceEmbedder, x: Tensor, y: Tensor) -> Tensor:
    """Standard deviation [B] of the squared distance of pairs under the posterior."""
    return embedder.distance(x, y).variance.double().clamp_min(0).sqrt()


def narrow(embedder: LaplaceEmbedder, x: Tensor) -> LaplaceEmbedder:
    """The posterior at a temperature at which the uncertainty of inputs is ``NARROW`` on average.

    There the spread of directions does not saturate, and every posterior is compared at one width.
    """
    for _ in range(3):
        fitted, width = embedder.fitted_, float(embedder(x).uncertainty.mean())
        cooler = fitted.with_temperature(fitted.posterior.temperature * NARROW / width)
        embedder = LaplaceEmbedder.from_fitted(embedder.model, embedder.settings, cooler)
    return embedder


def partial(a: Tensor, b: Tensor, given: Tensor) -> float:
    """Rank correlation of a and b, given a third variable (Kendall 1942, of Spearman's)."""
    r = spearmanr(torch.stack([a, b, given], 1).numpy()).statistic
    ab, ag, bg = r[0, 1], r[0, 2], r[1, 2]
    return float((ab - ag * bg) / ((1 - ag**2) * (1 - bg**2)) ** 0.5)


def measured(network: Network, seed: int, data: Any, cache: Path) -> list[Row]:
    """Every collection of one network."""
    of = trained(network, seed, data, cache)
    weights = bootstrapped(network, of.head, *of.fit)
    embedder = embedder_of(of)
    fits = under_priors(embedder)
    noise = embedder.fitted_.with_precision(STRONG)
    fits[NOISE] = LaplaceEmbedder.from_fitted(embedder.model, embedder.settings, noise)
    rows = []
    for place, collection in enumerate(of.collections):
        with torch.no_grad():
            x, y = pairs_of(of.head, collection)
        found = {name: compared(one, weights, x, y) for name, one in fits.items()}
        rows.append(
            {
                "network": network.name,
                "part": network.part,
                "seed": seed,
                "collection": collection.name,
                "known": place == 0,
                **found,
            }
        )
    return rows


def run(options: Namespace) -> None:
    """Train, measure and write the record."""
    smoke = options.size == "smoke"
    networks = NETWORKS[:1] if smoke else NETWORKS
    seeds = 1 if smoke else SEEDS
    todo = [(network, seed) for network in networks for seed in range(seeds)]
    rows: list[Row] = []
    for network, seed in tqdm(todo, desc="Networks", disable=None):
        rows += measured(network, seed, options.data, options.cache)
    print(write_record(VARIANCE, {"rows": rows}, folder_of(options)).name)
    print(variance_table(folder_of(options)))
