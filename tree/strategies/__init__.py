"""Strategies: how a tree grows, each behind the same interface, so that they can be compared at the same budget."""
