"""The finaliser of MurmurHash3, and how many bits of its result are set."""

import numpy as np


def reference(keys):
    words = keys.astype(np.uint64)
    for factor, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        words = (words ^ (words >> shift)) * factor % 2**32
    words ^= words >> 16
    ones = sum((words >> bit) & 1 for bit in range(32))
    return words.astype(np.uint32), ones.astype(np.uint8)
