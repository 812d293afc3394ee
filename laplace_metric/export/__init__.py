"""Graphs that run without this package: an embedder's numbers, and a calibration's verdict."""
