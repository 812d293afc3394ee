"""What tells one fitted embedder from another."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laplace_metric.embedder import LaplaceEmbedder


def identity(embedder: LaplaceEmbedder) -> str:
    """sha256 of what decides uncertainties and distances, the backbone left out."""
    posterior, digest = embedder.posterior_, hashlib.sha256()
    for tensor in (posterior.mean, posterior.spectrum):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    digest.update(f"{embedder.spherical} {embedder.settings.structure}".encode())
    return digest.hexdigest()
