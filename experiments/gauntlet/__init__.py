"""The gauntlet: kernels that cheat and kernels that are merely unusual, all evaluated as a search does it."""
