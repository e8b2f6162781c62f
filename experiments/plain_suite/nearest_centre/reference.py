"""The squared Euclidean distance of each point to the nearest centre."""

import numpy as np

POINTS = 1024  # at a time, so that what is computed on the way stays small


def reference(x, c):
    parts = []
    for first in range(0, len(x), POINTS):
        offsets = x[first : first + POINTS, None, :] - c[None, :, :]
        parts.append((offsets * offsets).sum(axis=2).min(axis=1))
    return np.concatenate(parts)
