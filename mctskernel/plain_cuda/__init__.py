"""Plain CUDA C++ for a function of PyTorch: a kernel for each operator, a thread for each element of its result."""
