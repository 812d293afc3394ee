"""What held-out queries guarantee: the queries, the guarantee, and the theories, a file each.

_calibration_queries  queries that no fit has seen, with the truth about each
_theory               what is guaranteed, as one value; the role of a theory
_theories             which theory tests which rate
_precision            the lowest threshold that keeps a precision (Learn then Test)
_recall               the highest threshold that keeps a recall (Wilks)
_biometric_rates      false match and false positive identification rates (ISO/IEC 19795-1)
_group_totals         rates of groups of queries, and of all hits; _betting has their tests
_test_sequences       thresholds from high to low, and the hits that test each
_queries_needed       how many more queries a precision takes
_risk_control         how many hits to pass on, so that few relevant items are lost (conformal)
_open_set_fraction    a share of open-set queries that moved (label shift)
"""
