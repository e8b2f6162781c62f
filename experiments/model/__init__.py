"""What the performance model says of kernels whose times are known, and how well it ranks them."""
