"""Experiments: each module that is a command is run as `python -m mctskernel.experiments.NAME`.

- `ablation`: the choices of a search compared, behind `mctskernel ablate`
- `suite`, `evaluator_cost`: the built-in tasks on a GPU, beside PyTorch, and the evaluator's speed
- `model_benchmark`: how well the model predicts known times of kernels
- `kernel_tuner`: Kernel Tuner's strategies on search-space caches

`plain_suite/` holds folders of tasks.
"""
