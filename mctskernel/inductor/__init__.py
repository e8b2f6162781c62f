"""What torch.compile generates for a function, as a kernel that a search can start from.

PyTorch itself compiles and runs the function (`capture`); the Python text that it generated is read as data
(`generated`), its sizes are made names again (`sizes`), and its kernels are written as a candidate (`candidate`).
"""
