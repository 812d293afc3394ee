"""``laplace-metric serve``: searches over HTTP, with what a server needs around them.

bytes -> ``Question`` -> ``QueryReader`` -> ``Worker`` (one thread, the model) -> ``SearchAnswer``

``SearchService`` is all of that, without HTTP; ``_http`` and ``_guard`` put it behind FastAPI,
which only ``laplace-metric serve`` imports. Answers are those of ``Index.search``. Queries that
wait for the model go in together, up to ``--batch``.
"""
