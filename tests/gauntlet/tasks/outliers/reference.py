"""Whether |x[i] - x[i - 1]| > limit; the first element is no outlier. The difference is rounded to float32."""

import numpy as np


def reference(x, limit):
    single = x.astype(np.float32)
    far = np.zeros(len(x), bool)
    far[1:] = np.abs(single[1:] - single[:-1]) > limit
    return far
