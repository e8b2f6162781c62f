"""Every problem of a folder: read, searched, timed beside PyTorch, and told in one table (`mctskernel bench`)."""
