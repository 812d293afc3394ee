"""How much a request may ask for, and what it is told when it asks for more."""

from __future__ import annotations

from dataclasses import dataclass

from laplace_metric.errors import InputError

BAD_REQUEST, FORBIDDEN, CONFLICT = 400, 403, 409
TOO_LARGE, WRONG_TYPE, BUSY, STOPPING = 413, 415, 503, 503


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
    pixels : int or None
        Of an image as it comes; None: 32 million where images are scaled, 1 million where the
        model gets them as they are.
    k : int
        Neighbours.
    text : int
        Characters.
    waiting : int
        Requests at once, each with its body and its decoded input in memory.
    seconds : float
        In which a body must have come.
    """

    body: int = 10 * 2**20
    pixels: int | None = None
    k: int = 1000
    text: int = 20_000
    waiting: int = 64
    seconds: float = 30.0

    def of_an_image(self, *, scaled: bool) -> int:
        """Pixels that an image may have."""
        if self.pixels is not None:
            return self.pixels
        return 32_000_000 if scaled else 1_000_000
