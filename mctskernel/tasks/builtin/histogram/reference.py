"""How often each of the 256 bytes occurs."""

import numpy as np


def reference(values):
    return np.bincount(values, minlength=256)
