"""The methods that are compared, with what may be tuned of each."""

from benchmarks.methods.entry import Entry, Loaders
from benchmarks.methods.table import BASE, METHODS

__all__ = ["BASE", "METHODS", "Entry", "Loaders"]
