"""Evaluating whole PyTorch modules, each in a process of its own that has no say in its verdict."""
