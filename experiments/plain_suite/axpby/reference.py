"""alpha x + beta y of two vectors."""


def reference(x, y, alpha, beta):
    return alpha * x + beta * y
