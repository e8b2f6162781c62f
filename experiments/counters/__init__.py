"""What counters say of kernels, held against how long the kernels take."""
