"""What edits do, learnt from the whole tree: a Gaussian process over the factors that kernels decide."""
