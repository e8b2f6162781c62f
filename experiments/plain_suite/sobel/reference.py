"""The length of the gradient by Sobel's two filters; zero on the border."""

import numpy as np


def reference(image):
    edges = np.zeros_like(image)
    upper, middle, lower = image[:-2], image[1:-1], image[2:]
    across = (
        (upper[:, 2:] - upper[:, :-2]) + 2 * (middle[:, 2:] - middle[:, :-2]) + (lower[:, 2:] - lower[:, :-2])
    )
    below = (
        (lower[:, :-2] - upper[:, :-2])
        + 2 * (lower[:, 1:-1] - upper[:, 1:-1])
        + (lower[:, 2:] - upper[:, 2:])
    )
    edges[1:-1, 1:-1] = np.sqrt(across * across + below * below)
    return edges
