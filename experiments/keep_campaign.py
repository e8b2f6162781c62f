"""Keep the report of a campaign as a result, with where it comes from.

python -m mctskernel.experiments.keep_campaign runs/campaign-block --out docs/results/campaign_model.json
"""

from __future__ import annotations

from pathlib import Path

import click

from mctskernel.campaign.configuration import CampaignError
from mctskernel.campaign.report import read_report
from mctskernel.experiments.records.provenance import provenance_here, write_result


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--command", default="mctskernel campaign CONFIG", show_default=True, help="What searched it.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(folder: Path, command: str, out: Path) -> None:
    """Write what FOLDER's campaign.json says."""
    try:
        report = read_report(folder)
    except CampaignError as error:
        raise click.ClickException(str(error)) from error
    write_result(out, report, provenance_here(command))


if __name__ == "__main__":
    main()
