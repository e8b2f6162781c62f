"""Benchmarks of the engine and ablations of the search."""
