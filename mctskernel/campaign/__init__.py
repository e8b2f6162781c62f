"""Campaigns: the kernels of one model searched under one budget, each evaluation where the model gains most."""
