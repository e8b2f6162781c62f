"""The gauntlet: kernels that cheat and kernels that are merely unusual, each judged as a search judges its own."""
