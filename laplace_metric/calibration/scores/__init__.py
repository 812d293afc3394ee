"""Judged scores of any search: read, checked, and turned into probabilities.

_score_numbers, _qrels  arguments: arrays and judgements by id
_score_features   scores -> features of each hit
_score_model      features -> probability: a model of first hits, and of those behind
_score_scale      scores at the call are compared with those that calibrated
_score_warnings   relevant hits that score lower, ties in the order of relevance
_copied_scores    repeated queries
_scored_queries   the value: probabilities, and the queries that test them
"""
