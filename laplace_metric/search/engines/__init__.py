"""Engines: which rows are nearest to query vectors.

_engine          the kinds (Flat, IVF, HNSW), exact search, and the role
_built_engine    a kind, made of vectors
_faiss           engines of FAISS; _faiss_arrays: their numbers as arrays of a file
_foreign_engine  a search that runs elsewhere; _running_faiss: a FAISS index of yours
_found_shares    how much of the nearest an engine finds
"""
