"""The head of an embedder: which layer it is, what enters and leaves it, and its Jacobian.

Finding it, in one forward pass:
_locate          finds the head: named, appended, or the last linear layer that runs
_located         a head that was found, and the tensors of one forward pass there
_recording       runs a model and records what enters and leaves its heads
_capture         returns the activations at one head, of inputs or of what was seen before
_pointwise       a 1x1 convolution as a head
_normalized      finds out whether the model normalises the head's output
_computed        a head whose weights are computed (weight_norm), written out
_model_errors    explains why a model does not run
_model_output    one tensor of embeddings out of what a model returned, or why there is none

Recognising it:
_identity        a head found again in another process
_fitted_weights  notices that a model no longer has the weights of the fit
_body            the tensors outside the head, as they were at the fit
_row_checks      every embedding is finite and has a direction

J = dz/dtheta:
_jacobian        the interface that all backends share
_backends        chooses the backend
_linear, _chain  closed forms: one linear layer; several with activations between them
_layer, _layout, _factors, _affine    the Kronecker products of which these are made
_functional, _backpack, _nnj          any other head: torch.func, BackPACK, nnj
"""
