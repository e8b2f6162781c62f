"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from mctskernel.profiling.architecture import (
    FILE_SUFFIX,
    ArchitectureError,
    known_architectures,
    load_architecture,
)


class DescribedGpu(click.ParamType):
    """The short name of a GPU that the package describes, or a file that describes one."""

    name = "gpu"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        """What the help page shows."""
        return f"[{'|'.join(known_architectures())}|FILE{FILE_SUFFIX}]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as the package spells it, or the file's whole path, so that a run can be resumed anywhere."""
        try:
            load_architecture(value)
        except ArchitectureError as error:
            self.fail(str(error), param, ctx)
        return str(Path(value).resolve()) if value.endswith(FILE_SUFFIX) else value.upper()


architecture = click.option(
    "--architecture",
    type=DescribedGpu(),
    default="H100",
    show_default=True,
    help="The GPU that --device model stands for: a name, or a file that `mctskernel calibrate` wrote.",
)

workers = click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Evaluations in flight; on a GPU, processes that compile for it. "
    "[default: one for each CPU core; on a GPU 4, for Triton 8]",
)
