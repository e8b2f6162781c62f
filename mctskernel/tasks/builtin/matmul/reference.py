"""C = A B."""


def reference(a, b):
    return a @ b
