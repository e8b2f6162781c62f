"""The dot product of two vectors."""


def reference(x, y):
    return (x * y).sum(keepdims=True)
