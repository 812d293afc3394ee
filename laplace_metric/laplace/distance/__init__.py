"""The squared distance of two uncertain embeddings, its mean and variance: a file a method.

_embedding_pairs    pairs of embeddings with their covariances, any or diagonal in one basis
_squared_distance   chooses the method; moments from any covariances, and of mixtures
_spectral_moments   the same moments where all covariances are diagonal in one basis, O(Z) a pair
_chord_quadrature   exact moments of directions, where a draw may be far from its mean
"""
