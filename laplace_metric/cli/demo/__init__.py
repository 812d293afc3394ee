"""``laplace-metric demo``: every method on one small data set, as a page."""

from laplace_metric.cli.demo._recipes import DEFAULT, RECIPES

__all__ = ["DEFAULT", "RECIPES"]
