"""The sum of two vectors."""


def reference(a, b):
    return a + b
