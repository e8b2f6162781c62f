"""Symmetric quantisation: the largest magnitude of a row becomes 127."""

import numpy as np


def reference(x):
    scales = np.abs(x).max(axis=1) / 127
    divisors = np.where(scales > 0, scales, 1)
    codes = np.clip(np.rint(x / divisors[:, np.newaxis]), -127, 127)
    return codes.astype(np.int8), scales
