"""How much a request may ask for, and what it is told when it asks for more."""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric.errors import InputError

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, TIMEOUT, CONFLICT = 400, 401, 403, 408, 409
TOO_LARGE, WRONG_TYPE, BUSY, STOPPING = 413, 415, 503, 503
BODIES = 64 * 2**20
"""Bytes of all bodies in memory, unless a single one may have more."""


class RequestRefused(InputError):
    """A request that is not answered; ``status`` is that of HTTP, 400 to 599.

    Examples
    --------
    >>> RequestRefused("the body is too large", TOO_LARGE).status
    413
    """

    def __init__(self, message: str, status: int = BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Limits:
    """What one request, and all of them together, may cost.

    Parameters
    ----------
    body : int
        Bytes.
    bodies : int
        Bytes of all bodies that are arriving or being answered.
    pixels : int or None
        Of an image as it comes; None: 32 million where images are scaled, 1 million where the
        model gets them as they are.
    k : int
        Neighbours.
    text : int
        Characters.
    width : int or None
        Numbers of a vector; None where the model alone knows.
    waiting : int
        Requests at once whose bodies have arrived.
    seconds : float
        In which a body must have come, and an answer must have been read.
    head_seconds : float
        In which the headers of a request must have come.
    connections : int
        Of one client address.
    """

    body: int = 10 * 2**20
    bodies: int = BODIES
    pixels: int | None = None
    k: int = 1000
    text: int = 20_000
    width: int | None = None
    waiting: int = 64
    seconds: float = 30.0
    head_seconds: float = 10.0
    connections: int = 128

    def of_an_image(self, *, scaled: bool) -> int:
        """Pixels that an image may have."""
        if self.pixels is not None:
            return self.pixels
        return 32_000_000 if scaled else 1_000_000
