"""Shortlists from a flat FAISS index, where FAISS is installed."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from laplace_metric.errors import InputError
from laplace_metric.evaluation._search import Proposer, Shortlist, rounding_slack


def faiss_fits(points: Tensor) -> bool:
    """FAISS is installed and the points are what it holds: float32 in main memory."""
    in_reach = points.dtype == torch.float32 and points.device.type == "cpu"
    return in_reach and importlib.util.find_spec("faiss") is not None


def require_faiss(points: Tensor) -> None:
    """Raise unless FAISS can search these points."""
    if importlib.util.find_spec("faiss") is None:
        raise InputError("backend='faiss' but faiss is not installed. Run: pip install faiss-cpu")
    if not faiss_fits(points):
        raise InputError(
            f"backend='faiss' holds float32 on the CPU, the queries are {points.dtype} on "
            f"{points.device}. Convert them, or use backend='torch'."
        )


def faiss_proposer(queries: Tensor, gallery: Tensor) -> Proposer:
    """Shortlists by ``faiss.IndexFlatL2`` about the gallery's centre."""
    import faiss

    centre = gallery.mean(0)
    points = gallery - centre
    index = faiss.IndexFlatL2(gallery.shape[1])
    index.add(points.contiguous().numpy())

    def propose(rows: Tensor, m: int, exclude: Tensor | None) -> Shortlist:
        centred = queries[rows] - centre
        wanted = m + (exclude is not None)
        squared, found = map(torch.from_numpy, index.search(centred.contiguous().numpy(), wanted))
        slack = rounding_slack(centred, points, torch.float32)
        slack = slack.masked_fill((found < 0).any(1), torch.inf)
        return Shortlist(found.clamp(min=0), squared.double(), slack, wanted == gallery.shape[0])

    return propose
