"""The constants of the GPU in this machine, from small kernels that each load one part of it."""
