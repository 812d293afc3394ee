"""Two towers: encoders, projections, posteriors, and their embeddings.

_encoder_features  features of an encoder, checked, in blocks
_towers             a tower as the encoder of an index; distances of two towers
_tower_posterior    the posterior of a head
_prolip_towers      networks of published checkpoints
_projections        trained projections of a CLIP or SigLIP; _projection_factors: their posterior
_spread             means and variances, monitored in training
"""
