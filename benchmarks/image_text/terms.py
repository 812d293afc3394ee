"""Heads trained on WordNet: are general terms wide, are glosses inside their hypernyms.

Half of the terms that are never trained on, by their hash, are for development; ``test`` is the
other half. All settings are those of emoji, but for 8 epochs.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from benchmarks.image_text.emoji import share_of
from benchmarks.image_text.entailment import EntailedProLIP
from benchmarks.image_text.hierarcaps import HierarCaps, level_means, ordered, text_ways
from benchmarks.image_text.measure import METHODS
from benchmarks.image_text.questions import (
    RIDGE,
    Row,
    partial_correlation,
    rank_correlation,
    scored,
)
from benchmarks.image_text.wordnet import WordNetProblem
from benchmarks.image_text.wrong_captions import trained
from laplace_metric.evaluation import auroc
from laplace_metric.image_text import ImageTextEmbedder, Objective

GLOSSES_AS_TEXTS = ", glosses as texts"
ENTAILED = "prolip, entailment and contrast"


def with_entailment() -> Objective:
    """ProLIP with inclusion of texts in the texts that they imply; weights chosen on emoji."""
    return EntailedProLIP(entailment=50.0, contrast=5.0)


KINDS: dict[str, Callable[[], Objective]] = {
    "prolip-regions": METHODS["prolip-regions"],
    ENTAILED: with_entailment,
    "prolip": METHODS["prolip"],
    "siglip": METHODS["siglip"],
    f"prolip-regions{GLOSSES_AS_TEXTS}": METHODS["prolip-regions"],
}


def parts_of(problem: WordNetProblem) -> dict[str, Tensor]:
    """Rows of terms: trained on, and both halves of the others."""
    chooses = torch.tensor([share_of(f"development {name}") < 0.5 for name in problem.names])
    new = problem.new
    parts = {"trained": ~new, "development": new & chooses, "test": new & ~chooses}
    return {name: mask.nonzero().flatten() for name, mask in parts.items()}


def generality(values: Tensor, problem: WordNetProblem, terms: Tensor, seed: int) -> Row:
    """Spearman of a number of each term and the log of 1 + its descendants.

    Beside it: among terms that have descendants; shuffled; with the number of letters partialled
    out.
    """
    v = values.double().numpy()
    log_counts = torch.log1p(problem.descendants[terms].double()).numpy()
    letters = np.array([len(problem.names[row]) for row in terms.tolist()])
    inner = log_counts > 0
    mixed = np.random.default_rng(seed).permutation(log_counts)
    return {
        "spearman": rank_correlation(v, log_counts),
        "with descendants": rank_correlation(v[inner], log_counts[inner]),
        "shuffled": rank_correlation(v, mixed),
        "without length": partial_correlation(v, log_counts, letters),
        "terms": float(len(terms)),
    }


def inclusion(embedder: ImageTextEmbedder, problem: WordNetProblem, part: Tensor, seed: int) -> Row:
    """AUROC of glosses of some terms in one of their hypernyms against one of another gloss.

    And in their own term against a sibling: another term with the same nearest hypernym.
    """
    rows = torch.isin(problem.own, part).nonzero().flatten().tolist()
    rows = [row for row in rows if problem.above[row]]
    g = np.random.default_rng(seed)
    nearest = {row: min(problem.above[row], key=lambda t: int(problem.descendants[t]))
               for row in range(len(problem.own)) if problem.above[row]}  # fmt: skip
    family = defaultdict(list)
    for row, parent in nearest.items():
        family[parent].append(int(problem.own[row]))
    pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        mine = {int(problem.own[row]), *problem.above[row]}
        pairs["hypernym"].append((row, int(g.choice(problem.above[row]))))
        donors = (int(g.choice(rows)) for _ in iter(int, 1))
        others = (int(g.choice(problem.above[d])) for d in donors)
        pairs["random"].append((row, next(term for term in others if term not in mine)))
        if siblings := [t for t in family[nearest[row]] if t not in mine]:
            pairs["own"].append((row, int(problem.own[row])))
            pairs["sibling"].append((row, int(g.choice(siblings))))
    scores = {}
    for kind, both in pairs.items():
        gloss, term = torch.tensor(both).unbind(1)
        image, text = (
            embedder.embed_image(problem.glosses[gloss]),
            embedder.embed_text(problem.terms[term]),
        )
        scores[kind] = scored(image, text)
    return {
        f"{name}, {other}": auroc(scores[other][name], values)
        for own, other in (("hypernym", "random"), ("own", "sibling"))
        for name, values in scores[own].items()
    }


def term_regression(problem: WordNetProblem, photographs: HierarCaps) -> dict[str, Row]:
    """What the features hold of the descendants: a ridge regression on trained terms.

    ``levels``: whether what it says of the captions of HierarCaps falls from level to level.
    """
    parts = parts_of(problem)
    log_counts = torch.log1p(problem.descendants.double()).numpy()
    x, trained = problem.terms.numpy(), parts["trained"].numpy()
    fit = Ridge(alpha=RIDGE).fit(x[trained], log_counts[trained])
    values = torch.as_tensor(fit.predict(x))
    rows = {name: generality(values[rows], problem, rows, 0) for name, rows in parts.items()}
    captions = torch.as_tensor(fit.predict(photographs.texts.numpy()))
    return {**rows, "levels": ordered(captions, photographs.own)}


def trained_on_terms(
    problem: WordNetProblem, photographs: HierarCaps, kind: str, seed: int, epochs: int
) -> dict[str, Any]:
    """One training on WordNet, and everything that is asked of it."""
    start = time.perf_counter()
    pairs = problem.training(with_glosses=kind.endswith(GLOSSES_AS_TEXTS))
    embedder = trained(pairs, KINDS[kind](), seed, epochs)
    row: dict[str, Any] = {
        "method": kind, "seed": seed, "seconds": time.perf_counter() - start,
    }  # fmt: skip
    parts, terms = parts_of(problem), embedder.embed_text(problem.terms)
    texts, empty = embedder.embed_text(photographs.texts), embedder.embed_text(photographs.empty)
    for name, rows in parts.items():
        row[name] = {}
        if embedder.objective.probabilistic:
            row[name] = generality(terms.uncertainty[rows], problem, rows, seed)
        if name != "trained":
            row[name] |= inclusion(embedder, problem, rows, seed)
    row["hierarcaps"] = text_ways(texts, empty, photographs.own, seed)
    to_empty = (texts.mean @ empty.mean.mT)[:, 0]
    row["to the empty text"] = ordered(to_empty, photographs.own, seed)
    if embedder.objective.probabilistic:
        row["levels"] = {
            **ordered(texts.uncertainty, photographs.own, seed),
            "words": rank_correlation(texts.uncertainty.numpy(), photographs.words.numpy()),
        }
        row["level means"] = level_means(texts.uncertainty, photographs.own)
    return row
