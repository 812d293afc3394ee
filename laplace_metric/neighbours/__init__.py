"""Exact nearest neighbours: fast shortlists, then stages that leave nothing to rounding."""
