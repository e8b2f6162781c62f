"""Experiments: each module that is a command is run as `python -m mctskernel.experiments.NAME`.

- `ablation`: the choices of a search compared, behind `mctskernel ablate`
- `bench`: problems and tasks searched and timed beside PyTorch, behind `mctskernel bench`
- `gauntlet`: kernels that cheat, behind `mctskernel gauntlet`
- `model_benchmark`: how well the model of a GPU predicts known times of kernels
- `model_study`: what a language model adds to a search
- `helion`: the kernels of another autotuner beside those of a search

`plain_suite/` holds folders of tasks.
"""
