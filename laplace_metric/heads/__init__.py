"""The head of a model: found, seen in a forward pass, and differentiated by one of five backends.

_locate      which sub-module, what follows it
_capture     what enters it h [B, D] and what leaves it z [B, Z], in one forward pass
_jacobian    J = dz/dtheta; _chain, _functional, _backpack, _nnj: a backend each, chosen in _chain
"""
