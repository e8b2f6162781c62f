"""Every problem of a folder: read, searched, timed beside PyTorch, and shown in one table (`mctskernel bench`)."""
