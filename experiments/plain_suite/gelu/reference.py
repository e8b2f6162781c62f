"""The Gaussian error linear unit in its tanh form (Hendrycks and Gimpel, 2016)."""

import numpy as np


def reference(x):
    inner = 0.7978845608028654 * (x + 0.044715 * x**3)
    return 0.5 * x * (1.0 + np.tanh(inner))
