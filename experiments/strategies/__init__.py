"""Searches of recorded spaces, many at a time: what is compared, how they run, and their tables and plots."""
