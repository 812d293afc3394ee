"""The head of an embedder: which layer it is, what enters and leaves it, and its Jacobian.

_locate      a head inside a model: found by one forward pass, and seen at in every other one
_identity    a head found again in another process; its weights are those of the fit
_jacobian    J = dz/dtheta: the interface, and the closed form of linear layers
_backends    J of any other head: torch.func, BackPACK, nnj; which of them is chosen
"""
