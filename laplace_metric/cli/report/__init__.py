"""``laplace-metric report``: a verdict, queries with their neighbours, figures, where from."""
