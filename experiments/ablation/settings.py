"""What a search of an arm is set to, and the run that it makes of a task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mctskernel.core.documents import excerpt
from mctskernel.core.kernel import Language
from mctskernel.core.surrogate import SurrogateUse
from mctskernel.edits.llm.mixture import MixtureOptions
from mctskernel.edits.llm.options import LLMOptions, ModelError
from mctskernel.experiments.ablation.names import AblationError, check_name
from mctskernel.forecast import ForecastOptions
from mctskernel.profiling.reward import DEFAULT as DEFAULT_REWARD
from mctskernel.profiling.reward import REWARDS
from mctskernel.proposers import ASK_A_MODEL, LLM, MIXED, RULES
from mctskernel.run import Budget, Configuration
from mctskernel.search_policy import LOOKAHEAD, WALK, open_policy
from mctskernel.tree.choices import CHOICES
from mctskernel.tree.policy import Policy, PolicyError

POLICY = {field.name: field.type for field in msgspec.structs.fields(Policy)}

ORACLES = ("model", "recorded", "random")
"""Who predicts for the surrogate of a recorded space: the analytical model, the recording itself, or chance."""

PROPOSERS = (RULES, LLM, MIXED)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may differ between arms. `policy` holds the fields of a policy that are set.

    `surrogate` says what predictions decide, and `oracle` who makes them where nothing is built. `workers` are
    evaluations in flight. `memory` is "off" or a file; each arm should have its own. `model` holds options of a
    language model, by the names of `LLMOptions`, and `mixture` those of its experts; `judge` is "off", "same" or a
    model's name.
    """

    policy: Mapping[str, str | int | float] = {}
    proposer: str = RULES
    language: Language = Language.CUDA
    reward: str = DEFAULT_REWARD
    surrogate: SurrogateUse = SurrogateUse.OFF
    surrogate_candidates: int = LOOKAHEAD
    oracle: str = "model"
    workers: int = 1
    memory: str = "off"
    judge: str = "off"
    model: Mapping[str, str | int | float] = {}
    mixture: MixtureOptions = MixtureOptions()

    @property
    def asks_a_model(self) -> bool:
        """Whether a language model is needed."""
        return self.proposer in ASK_A_MODEL or self.judge != "off"


FIELDS = tuple(field.name for field in msgspec.structs.fields(Settings) if field.name != "policy")
"""Fields of settings beside those of the policy, which stand among them."""

SPACE_FIELDS = frozenset({"policy", "surrogate", "surrogate_candidates", "oracle", "workers"})
"""What a search of a recorded space can be told: there are no kernels to propose, reward or judge."""


def read_settings(table: Mapping[str, Any], where: str) -> Settings:
    """Settings of a table in which those of the policy stand among the others. Raises AblationError."""
    for name in table:
        check_name(name, (*FIELDS, *POLICY), f"setting of {where}")
    policy = {name: _checked(name, value, where) for name, value in table.items() if name in POLICY}
    others = {name: value for name, value in table.items() if name not in POLICY}
    for name, kind in (("model", LLMOptions), ("mixture", MixtureOptions)):
        nested = others.get(name, {})
        if isinstance(nested, Mapping):
            for key in nested:
                fields = [field.name for field in msgspec.structs.fields(kind)]
                check_name(str(key), fields, f"setting of {where}, {name},")
    for name, known in _NAMED.items():
        if isinstance(value := others.get(name), str):
            check_name(value, known, f"{name} (in {where})")
    try:
        return msgspec.convert({**others, "policy": policy}, Settings)
    except (msgspec.ValidationError, ValueError) as error:
        raise AblationError(f"In {where}: {excerpt(error)}") from error


def policy_of(settings: Settings, device: str) -> Policy:
    """The policy of a search on a device. Raises PolicyError."""
    begun = open_policy(device, settings.proposer, settings.surrogate, settings.surrogate_candidates)
    return msgspec.structs.replace(begun, **settings.policy)


def run_configuration(
    settings: Settings, *, task: str, device: str, architecture: str, seed: int, budget: Budget
) -> Configuration:
    """What makes the run of a trial. Raises PolicyError, and ModelError where a model lacks its name."""
    use = settings.surrogate
    judge = None if settings.judge == "off" else "" if settings.judge == "same" else settings.judge
    return Configuration(
        task=task,
        device=device,
        architecture=architecture,
        proposer=settings.proposer,
        seed=seed,
        workers=settings.workers,
        budget=budget,
        policy=policy_of(settings, device),
        language=settings.language,
        forecasts=None if use is SurrogateUse.OFF else ForecastOptions(wait=settings.workers == 1),
        memory=None if settings.memory == "off" else str(Path(settings.memory).resolve()),
        llm=_llm(settings) if settings.asks_a_model else None,
        mixture=settings.mixture if settings.asks_a_model else None,
        judge=judge,
        reward=settings.reward,
    )


def check_complete(settings: Settings, where: str) -> None:
    """Refuse settings that a trial would fail over, before the first begins. Raises AblationError."""
    try:
        policy = policy_of(settings, "model")
        if settings.asks_a_model:
            _llm(settings)
    except PolicyError as error:
        raise AblationError(f"In {where}: {error}") from error
    except ModelError as error:
        raise AblationError(f"The {where} asks a language model: {error}") from error
    if settings.surrogate is SurrogateUse.ORDER and policy.strategy != WALK:
        raise AblationError(
            f"In {where}: a surrogate that orders edits is for strategy {WALK}, not {policy.strategy}."
        )


def check_for_spaces(settings: Settings, where: str) -> None:
    """Refuse settings that a search of a recorded space has no use for. Raises AblationError."""
    told = set(msgspec.to_builtins(settings)) - SPACE_FIELDS
    if told:
        raise AblationError(
            f"The {where} sets {', '.join(sorted(told))}, which a recorded space has no use for: of its searches the "
            "policy, the surrogate and the workers can differ. Search tasks instead."
        )


def _llm(settings: Settings) -> LLMOptions:
    try:
        return msgspec.convert({"model": "", **settings.model}, LLMOptions)
    except msgspec.ValidationError as error:
        raise ModelError(str(error)) from error


def _checked(name: str, value: object, where: str) -> str | int | float:
    """A policy's value, of the type that the policy has for it."""
    if name in CHOICES and isinstance(value, str):
        check_name(value, CHOICES[name], f"{name} (in {where})")
    try:
        found: str | int | float = msgspec.convert(value, POLICY[name])
    except msgspec.ValidationError as error:
        raise AblationError(f"In {where}: {name}: {error}") from error
    return found


_NAMED = {
    "proposer": PROPOSERS,
    "reward": tuple(REWARDS),
    "surrogate": tuple(use.value for use in SurrogateUse),
    "language": (Language.CUDA.value, Language.TRITON.value),
    "oracle": ORACLES,
}
"""Settings that are one of some names; rewards that a user enters later are known then."""
