"""Each element doubled."""


def reference(x):
    return x * 2
