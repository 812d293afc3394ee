"""The fit of a posterior, in phases.

_settings     what an embedder is asked for; _fit_options: the names that are accepted
_fit          the phases, from a loader to ``Fitted``
_executor     passes over the points of all processes; _processes: this one, or a group
_points       inputs of the head at every point; _fit_storage: where they are kept
_spanned      a fit in the space that the points span
_available    numbers that a fit has and lacks, in words
"""
