"""Helpers that every package may use: numbers, draws, archives. Imports only ``errors``."""
