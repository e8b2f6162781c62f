"""Problems of KernelBench: Python files with a class `Model`."""
