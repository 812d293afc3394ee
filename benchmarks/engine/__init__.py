"""Tune, fit and measure, once each; every finished run is a file."""
