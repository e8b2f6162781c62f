"""Child processes: how they are started, spoken to and replaced; workers that compile and evaluate kernels."""
