"""Triton modules: read without being run, and compiled without a GPU."""
