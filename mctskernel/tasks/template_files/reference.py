"""What the kernel must compute, in numpy. This file is run as it is: it is your own code.

`reference` is called with the inputs, dimensions and scalars that its parameters name, and returns one array,
or a tuple of arrays in the order of the outputs. Keep to the precision of the arrays that come in: float64
inputs are used for the truth, the kernel's own precision to see what error is fair.
"""


def reference(x):
    return x.sum(axis=1)


# Optional, instead of the distributions in task.toml: every input by name, with its dtype and shape.
#
# import numpy as np
#
#
# def make_inputs(rng, rows, cols):
#     return {"x": rng.random((rows, cols), dtype=np.float32)}
