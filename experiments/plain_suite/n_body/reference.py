"""The gravitational acceleration at each body, softened as by Plummer (1911), with a constant of one."""

import numpy as np

BODIES = 64  # at a time, so that what is computed on the way stays small


def reference(body, softening):
    place, mass = body[:, :3], body[:, 3]
    parts = []
    for first in range(0, len(body), BODIES):
        offsets = place[None, :, :] - place[first : first + BODIES, None, :]
        squares = (offsets * offsets).sum(axis=2) + softening
        parts.append(((mass / (squares * np.sqrt(squares)))[:, :, None] * offsets).sum(axis=1))
    return np.concatenate(parts)
