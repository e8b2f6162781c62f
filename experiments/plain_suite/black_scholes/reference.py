"""The price of European call options (Black and Scholes, 1973)."""

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def reference(spot, strike, years, rate, volatility):
    spread = volatility * np.sqrt(years)
    first = (np.log(spot / strike) + (rate + 0.5 * volatility * volatility) * years) / spread
    return spot * _normal(first) - strike * np.exp(-rate * years) * _normal(first - spread)


def _normal(value):
    """The share of a standard normal distribution that is below a value."""
    return (0.5 + 0.5 * _erf(value * math.sqrt(0.5))).astype(value.dtype)
