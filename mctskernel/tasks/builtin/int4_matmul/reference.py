"""x W^T, where W has 4-bit codes, two a byte with the first in the low half, and a scale for each group of a row."""

import numpy as np


def reference(x, packed, scales, group):
    codes = np.empty((len(packed), 2 * packed.shape[1]), np.int8)
    codes[:, 0::2] = packed & 15
    codes[:, 1::2] = packed >> 4
    codes -= 8
    weights = codes.reshape(*scales.shape, group) * scales[:, :, np.newaxis]
    return x @ weights.reshape(codes.shape).T
