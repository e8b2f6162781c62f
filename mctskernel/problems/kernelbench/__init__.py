"""KernelBench: a problem is a Python file with a PyTorch module, and a solution another with a `ModelNew`.

`benchmark.KERNELBENCH` is what the registry has of it. The reference.py of its tasks imports `reference` alone.
"""
