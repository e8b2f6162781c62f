"""Where the largest number of each row is; the first of them if there are several."""


def reference(x):
    return x.argmax(axis=1)
