"""Edits and the proposers that make them."""
