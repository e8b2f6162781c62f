"""Options that several commands take."""

from __future__ import annotations

import rich_click as click

from mctskernel.profiling.architecture import known_architectures

architecture = click.option(
    "--architecture",
    type=click.Choice(list(known_architectures())),
    default="H100",
    show_default=True,
    help="The GPU that --device model stands for.",
)

workers = click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Evaluations in flight; on a GPU, processes that compile for it. "
    "[default: one for each CPU core; on a GPU 4, for Triton 8]",
)
