"""A matrix times a vector."""


def reference(a, x):
    return a @ x
