"""Monte Carlo tree search over edits of GPU kernels."""

__version__ = "0.1.0"
