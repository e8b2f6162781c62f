"""x W^T, where W has 4-bit codes, two a byte with the first in the low half, and a scale for each group of a row."""

import numpy as np


def reference(x, packed, scales, group):
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
    weights = (codes.astype(np.int8) - np.int8(8)) * np.repeat(scales, group, axis=1)
    return x @ weights.T
