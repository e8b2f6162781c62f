"""Kernels as Python modules that stand alone: the host code that a launch plan spares its kernel."""
