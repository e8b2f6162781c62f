"""Problems of public benchmarks, which become task folders, and kernels as solutions in the benchmark's format.

Each format has a package here. All of them end in `torch_task`, which writes the task folder.
"""
