"""The PyTorch door: whole modules, which are programs, judged from outside the process that they own."""
