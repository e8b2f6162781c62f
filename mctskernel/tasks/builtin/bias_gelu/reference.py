"""GELU in the tanh form of Hendrycks and Gimpel (2016), of a matrix plus a bias for each column."""

import math

import numpy as np


def reference(x, bias):
    biased = x + bias
    inner = math.sqrt(2 / math.pi) * (biased + 0.044715 * biased * biased * biased)
    return 0.5 * biased * (1 + np.tanh(inner))
