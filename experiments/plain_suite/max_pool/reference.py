"""The largest of each square of 2 x 2 pixels."""

import numpy as np


def reference(x):
    pairs = np.maximum(x[:, ::2], x[:, 1::2])
    return np.maximum(pairs[:, :, ::2], pairs[:, :, 1::2])
