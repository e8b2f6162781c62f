"""The kernels that torch.compile generates for a function, as a starting kernel in Triton.

PyTorch compiles and runs the function (`start`); the generated Python is parsed as data (`generated`), its sizes become
names of dimensions (`sizes`), and its kernels are written as a candidate (`candidate`).
"""
