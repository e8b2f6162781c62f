"""One view of a run for the terminal and other hosts."""
