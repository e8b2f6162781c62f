"""Cross-correlation of a signal with an odd number of weights around each element; zeros beyond its ends."""

import numpy as np


def reference(signal, weights):
    radius = len(weights) // 2
    padded = np.pad(signal, radius)
    out = np.zeros_like(signal)
    for tap, weight in enumerate(weights):
        out += weight * padded[tap : tap + len(signal)]
    return out
