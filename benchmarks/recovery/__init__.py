"""The controlled experiment of Kirchhof et al. (2023a): known posteriors, to be recovered."""
