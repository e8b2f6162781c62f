"""A real GPU: the process that holds it, what runs there, and how candidates are verified and timed on it."""
