"""Theories of what held-out queries guarantee, a file each: functions of arrays.

_test_sequences     thresholds from high to low, and the hits that test each
_precision          the lowest threshold that keeps a precision (Learn then Test)
_queries_needed     how many more queries a precision takes
_recall             the highest threshold that keeps a recall (Wilks)
_biometric_rates    false match and false positive identification rates (ISO/IEC 19795-1)
_risk_control       how many hits to pass on, so that few relevant items are lost (conformal)
_open_set_fraction  a share of open-set queries that moved (label shift)
"""
