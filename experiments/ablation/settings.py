"""What a search of an arm is set to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mctskernel.experiments.ablation.names import AblationError, check_name
from mctskernel.search_settings import SearchSettings, SettingError, check_complete, read_settings

ORACLES = ("model", "recorded", "random")
"""Who predicts for the surrogate of a recorded space: the analytical model, the recording itself, or chance."""


class Settings(SearchSettings, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may differ between arms. `oracle` says who predicts where nothing is built; each arm has its own memory."""

    oracle: str = "model"


SPACE_FIELDS = frozenset({"policy", "surrogate", "surrogate_candidates", "oracle", "workers"})
"""What a search of a recorded space can be told: there are no kernels to propose, reward or judge."""


def arm_settings(table: Mapping[str, Any], where: str) -> Settings:
    """Settings of a table in which those of the policy stand among the others. Raises AblationError."""
    try:
        found = read_settings(table, where, Settings)
    except SettingError as error:
        raise AblationError(str(error)) from error
    check_name(found.oracle, ORACLES, f"oracle (in {where})")
    return found


def check_arm(settings: Settings, where: str) -> None:
    """Refuse settings that a trial would fail over, before the first begins. Raises AblationError."""
    try:
        check_complete(settings, where)
    except SettingError as error:
        raise AblationError(str(error)) from error


def check_for_spaces(settings: Settings, where: str) -> None:
    """Refuse settings that a search of a recorded space has no use for. Raises AblationError."""
    told = set(msgspec.to_builtins(settings)) - SPACE_FIELDS
    if told:
        raise AblationError(
            f"The {where} sets {', '.join(sorted(told))}, which a recorded space has no use for: of its searches the "
            "policy, the surrogate and the workers can differ. Search tasks instead."
        )
