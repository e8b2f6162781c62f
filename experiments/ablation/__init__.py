"""Ablations: what the choices of a search are worth, by a file that says what is compared.

A configuration names arms, what is searched, seeds and budgets (`configuration`). A sweep makes a trial of each arm,
subject and seed, and goes on where it was cut off (`sweep`). What the trials come to is in one document (`results`), of
which everything else is made: figures with intervals and tests (`statistics`), tables (`tables`) and plots (`plots`).
"""
