"""x + mean(x @ w.T) of each row."""


def reference(x, w):
    return x + (x @ w.T).mean(axis=1, keepdims=True)
