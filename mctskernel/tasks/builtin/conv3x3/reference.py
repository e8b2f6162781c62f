"""Cross-correlation with 3 x 3 filters over images with a border of zeros, as in convolutional networks."""

import numpy as np


def reference(x, weight):
    images, channels, height, width = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((images, len(weight), height * width), x.dtype)
    for i in range(3):
        for j in range(3):
            window = padded[:, :, i : i + height, j : j + width]
            out += weight[:, :, i, j] @ window.reshape(images, channels, height * width)
    return out.reshape(images, len(weight), height, width)
