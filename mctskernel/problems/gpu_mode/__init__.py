"""GPU MODE: a problem is a folder with a task.yml and its Python, and a solution a submission.py.

`benchmark.GPU_MODE` is what the registry has of it. The reference.py of its tasks imports `reference` alone.
"""
