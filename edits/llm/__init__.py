"""Edits from language models."""
