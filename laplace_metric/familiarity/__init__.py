"""Is an input like anything that was fitted? Distances to the fit set, and ambiguity.

_near_far         near, far, local, length and ambiguity of inputs, as they are saved
_novelty          the weights by which distances recognise a new class
_label_model      ambiguity: the entropy of the label, by classes and label noise
_fit_set          a fit set read once: sums, and a sample of its points
_cross_fitted     its points, seen by the statistics of the others; and by the other classes
_leave_one_out    distances without one point, in closed form
_bursts           points that lie together, such as frames, which leave together
_row_sample       a sample of its rows that their order cannot change
_scatter          sums about the class means, and covariances from them
_class_gaussians  one Gaussian of all directions, and one for each class
_nearest          squared distances to the nearest class mean and to the nearest point
_directions, _triangles    directions of head inputs; products with upper triangles
"""
