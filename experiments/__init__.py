"""Experiments: what settles arguments about searches, the evaluator, the model and the engine.

Each module here is run, as `python -m mctskernel.experiments.NAME`, and says at its head what it shows. What stands
behind them is in packages:

- `ablation`: what the choices of a search are worth, behind `mctskernel ablate`
- `strategies`: searches of recorded spaces, many at a time
- `suites`: sets of tasks that are searched on a GPU, the plain suite among them
- `model`, `surrogate`, `counters`: what is said of a kernel, and what that is worth, by the times that it took
- `fault_injection`, `fuzz`: what is done to runs and to readers of files, and what must hold afterwards
- `serving`: what is done to a server of evaluations, and what must hold meanwhile
- `subjects`: what experiments are tried on
- `records`: how results are written, and which of them docs/results holds

`families/` and `plain_suite/` hold folders of tasks.
"""
