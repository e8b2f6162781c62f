"""A real GPU: the process that holds it, what runs there, and how candidates are judged on it."""
