"""y = A x for a sparse matrix A in compressed sparse rows (CSR)."""

import numpy as np


def reference(offsets, columns, values, x):
    products = values * x[columns]
    y = np.zeros(len(offsets) - 1, products.dtype)
    filled = offsets[:-1] < offsets[1:]
    y[filled] = np.add.reduceat(products, offsets[:-1][filled])
    return y


def make_inputs(rng, rows, cols, nonzeros):
    """Rows of log-normal length, a tenth of them empty; columns ascend, spread over the row."""
    lengths = _lengths(rng, rows, cols, nonzeros)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    row = np.repeat(np.arange(rows, dtype=np.int32), lengths)
    position = np.arange(nonzeros, dtype=np.int32) - offsets[:-1].astype(np.int32)[row]
    places = position + rng.random(nonzeros)
    places /= lengths.astype(float)[row]
    # Ascending places between the gaps, one more for each element before.
    places *= (cols - lengths + 1.0)[row]
    np.floor(places, out=places)
    places += position
    return {
        "offsets": offsets.astype(np.int32),
        "columns": places.astype(np.int32),
        "values": rng.standard_normal(nonzeros, np.float32),
        "x": rng.standard_normal(cols, np.float32),
    }


def _lengths(rng, rows, cols, nonzeros):
    weights = rng.lognormal(size=rows) * (rng.random(rows) < 0.9)
    weights[rng.integers(rows)] += 1.0
    lengths = np.minimum(rng.multinomial(nonzeros, weights / weights.sum()), cols)
    # What full rows had to turn away goes to the first that have room.
    room = cols - lengths
    left = nonzeros - lengths.sum()
    return lengths + np.clip(left - (np.cumsum(room) - room), 0, room)
