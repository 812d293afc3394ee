"""What is asked of a fitted method, one file a protocol."""

from benchmarks.protocols.table import PROTOCOLS, Protocol

__all__ = ["PROTOCOLS", "Protocol"]
