"""Templates of fast kernels for groups of a PyTorch function's operators.

Each module finds the groups that it covers and writes their kernels; `groups` puts them together. What writes an
element of an operator is in `problems.plain_cuda`.
"""
