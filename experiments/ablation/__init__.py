"""Ablations: search configurations compared by paired trials, behind `mctskernel ablate`."""
