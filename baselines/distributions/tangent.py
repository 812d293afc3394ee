"""Unit vectors at given angles from given directions, in uniformly random tangent directions.

    z = w m + s e        e = (g - (m.g) m) / |g - (m.g) m|,  g ~ N(0, I)

so only the standard normal numbers themselves are drawn, into the result, block by block. Each
block of a CPU tensor has its own generator, seeded from the caller's: the draw does not depend on
the number of threads.

Gradient, with ``c = (m.g) / |g - (m.g) m|`` kept:

    dz = w dm + m dw + e ds + s de        de = -c (dm - e (e.dm)) - m (e.dm)      m.dm = 0
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from laplace_metric.distributions._angle_quadrature import Angle

STREAM, BLOCK = 1 << 20, 1 << 17  # numbers of one generator; numbers worked on at once
LOW_DIMENSION = 32  # below, g may lie so close to m that one projection leaves rounding errors


def at_angle(
    loc: Float[Tensor, "*B D"], angle: Angle, generator: torch.Generator | None = None
) -> Float[Tensor, "... D"]:
    """Return vectors [*S, *B, D] with ``loc.z = cosine`` for angles [*S, *B] and loc [*B, D].

    Examples
    --------
    >>> angle = Angle(torch.full((3, 1), 0.6), torch.full((3, 1), 0.8))
    >>> z = at_angle(torch.tensor([[1.0, 0.0]]), angle)
    >>> z[:, 0, 0], z[:, 0, 1].abs()
    (tensor([0.6000, 0.6000, 0.6000]), tensor([0.8000, 0.8000, 0.8000]))
    """
    return _AtAngle.apply(loc, angle.cosine, angle.sine, generator)


class _AtAngle(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, loc: Tensor, cosine: Tensor, sine: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        z, slant = _draw(loc, cosine, sine, generator)
        ctx.save_for_backward(loc, z, cosine, sine, slant)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        loc, z, *angles = ctx.saved_tensors
        w, s, c = (x[..., None] for x in angles)
        e = (z - w * loc) / s.clamp_min(torch.finfo(s.dtype).tiny)
        along_e, along_loc = (grad * e).sum(-1, keepdim=True), (grad * loc).sum(-1, keepdim=True)
        to_loc = (w - s * c) * grad + s * (c * along_e - along_loc) * e
        return to_loc.sum_to_size(loc.shape), along_loc[..., 0], along_e[..., 0], None


def _draw(
    loc: Tensor, w: Tensor, s: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return z [..., D] and c [...]."""
    size = loc.shape[-1]
    batch = loc.shape[:-1].numel()
    z = torch.empty((*w.shape, size), dtype=loc.dtype, device=loc.device)
    slant = torch.empty(w.shape, dtype=loc.dtype, device=loc.device)
    rows = w.numel() // max(batch, 1)
    flat_w, flat_s, flat_slant = (x.reshape(rows, batch) for x in (w, s, slant))
    flat_loc, flat_z = loc.reshape(batch, size), z.view(rows, batch, size)
    _Parts(flat_loc, flat_w, flat_s, flat_z, flat_slant).fill(generator)
    return z, slant


class _Parts(NamedTuple):
    """State that one draw reads and writes."""

    loc: Tensor  # [B, D]
    w: Tensor  # [S, B]
    s: Tensor  # [S, B]
    z: Tensor  # [S, B, D]
    slant: Tensor  # [S, B]

    def fill(self, generator: torch.Generator | None) -> None:
        """Fill all blocks: on the CPU each stream by one thread, elsewhere all at once."""
        if self.z.numel() <= STREAM or self.z.device.type != "cpu":
            return self._block(slice(None), slice(None), generator)
        streams = list(_cut(self.z.shape, STREAM))
        seed = int(torch.randint(2**62, (), generator=generator))
        jobs = [(seed + i, *stream) for i, stream in enumerate(streams)]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(self._stream, jobs))
        return None

    @torch.no_grad()  # a thread begins with gradients on
    def _stream(self, job: tuple[int, slice, slice]) -> None:
        seed, rows, columns = job
        generator = torch.Generator().manual_seed(seed)
        stream = _Parts(self.loc[columns], *(x[rows, columns] for x in self[1:]))
        for r, c in _cut(stream.z.shape, BLOCK):
            stream._block(r, c, generator)

    def _block(self, rows: slice, columns: slice, generator: torch.Generator | None) -> None:
        z, loc = self.z[rows, columns], self.loc[columns]
        w, s = self.w[rows, columns, None], self.s[rows, columns, None]
        z.normal_(generator=generator)
        first = (z * loc).sum(-1, keepdim=True)
        if z.shape[-1] < LOW_DIMENSION:
            z.addcmul_(first, loc, value=-1)
            along = (z * loc).sum(-1, keepdim=True)
        else:
            along, first = first, torch.zeros_like(first)
        square = torch.linalg.vector_norm(z, dim=-1, keepdim=True).square_()
        scale = square.addcmul_(along, along, value=-1).clamp_min_(1e-30).rsqrt_()
        self.slant[rows, columns] = ((first + along) * scale)[..., 0]
        scale *= s
        z.mul_(scale).addcmul_(w.addcmul(scale, along, value=-1), loc)


def _cut(shape: torch.Size, limit: int) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of [rows, columns, size] of at most ``limit`` numbers (at least one vector)."""
    rows, columns, size = shape
    width = min(columns, max(1, limit // size))
    height = max(1, limit // (width * size))
    for row in range(0, rows, height):
        for column in range(0, columns, width):
            yield slice(row, row + height), slice(column, column + width)
