"""Experiments: each module that is a command is run as `python -m mctskernel.experiments.NAME`.

- `ablation`: the choices of a search compared, behind `mctskernel ablate`
- `bench`: problems and tasks searched and timed beside PyTorch, behind `mctskernel bench`
- `model_benchmark`: how well the model predicts known times of kernels

`plain_suite/` holds folders of tasks.
"""
