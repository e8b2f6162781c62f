"""The largest value of each row, the first place where it is, and the number of values above zero."""


def reference(x):
    return x.max(axis=1), x.argmax(axis=1), (x > 0).sum(axis=1)
