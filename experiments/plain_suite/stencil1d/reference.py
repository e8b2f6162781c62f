"""The mean of each element and its three neighbours on both sides; the three at each end stay as they are."""

RADIUS = 3


def reference(line):
    out = line.copy()
    inner = len(line) - 2 * RADIUS
    if inner > 0:
        total = line[:inner].copy()
        for shift in range(1, 2 * RADIUS + 1):
            total += line[shift : shift + inner]
        out[RADIUS:-RADIUS] = total / (2 * RADIUS + 1)
    return out
