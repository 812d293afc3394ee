"""The controlled experiment of Kirchhof et al. (2023a): posteriors that are known, to be recovered."""
