"""Helpers that every package may use: numbers, draws, archives. Imports only ``errors``."""

from __future__ import annotations

__version__ = "0.4.0"
