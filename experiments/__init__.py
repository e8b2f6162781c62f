"""Experiments.

- `ablation`: the choices of a search compared, behind `mctskernel ablate`
- `bench`: problems and tasks searched and timed beside PyTorch, behind `mctskernel bench`
- `gauntlet`: kernels that cheat, behind `mctskernel gauntlet`
- `model_benchmark`: how well the model of a GPU predicts known times of kernels

`plain_suite/` holds folders of tasks.
"""
