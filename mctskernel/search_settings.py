"""What a search is set to by a table of a configuration: an arm of an ablation, or a task of a campaign."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mctskernel.core.documents import excerpt
from mctskernel.core.executor import LOCAL, ExecutorOptions
from mctskernel.core.kernel import Language
from mctskernel.core.names import unknown_name
from mctskernel.core.surrogate import SurrogateUse
from mctskernel.core.user_errors import MisuseError
from mctskernel.edits.llm.mixture import MixtureOptions
from mctskernel.edits.llm.options import LLMOptions, ModelError
from mctskernel.forecast import ForecastOptions
from mctskernel.profiling.reward import DEFAULT as DEFAULT_REWARD
from mctskernel.profiling.reward import REWARDS
from mctskernel.proposers import ASK_A_MODEL, LLM, MIXED, RULES
from mctskernel.run import Budget, Configuration
from mctskernel.search_policy import LOOKAHEAD, WALK, open_policy
from mctskernel.tree.choices import CHOICES
from mctskernel.tree.policy import Policy, PolicyError

POLICY = {field.name: field.type for field in msgspec.structs.fields(Policy)}

PROPOSERS = (RULES, LLM, MIXED)


class SettingError(MisuseError, ValueError):
    """Settings that can't be used; the message is a sentence that says where they stand."""


class SearchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may differ between searches. `policy` holds the fields of a policy that are set.

    `surrogate` says what predictions decide. `workers` are evaluations in flight. `memory` is "off" or a file. `model`
    holds options of a language model, by the names of `LLMOptions`, and `mixture` those of its experts; `judge` is
    "off", "same" or a model's name.
    """

    policy: Mapping[str, str | int | float] = {}
    proposer: str = RULES
    language: Language = Language.CUDA
    reward: str = DEFAULT_REWARD
    surrogate: SurrogateUse = SurrogateUse.OFF
    surrogate_candidates: int = LOOKAHEAD
    workers: int = 1
    memory: str = "off"
    judge: str = "off"
    model: Mapping[str, str | int | float] = {}
    mixture: MixtureOptions = MixtureOptions()

    @property
    def asks_a_model(self) -> bool:
        """Whether a language model is needed."""
        return self.proposer in ASK_A_MODEL or self.judge != "off"


Settings = TypeVar("Settings", bound=SearchSettings)


def field_names(kind: type[SearchSettings]) -> tuple[str, ...]:
    """The fields beside those of the policy, which stand among them."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.name != "policy")


def read_settings(table: Mapping[str, Any], where: str, kind: type[Settings]) -> Settings:
    """Settings of a table in which those of the policy stand among the others. Raises SettingError."""
    for name in table:
        _check_name(name, (*field_names(kind), *POLICY), f"setting of {where}")
    policy = {name: _checked(name, value, where) for name, value in table.items() if name in POLICY}
    others = {name: value for name, value in table.items() if name not in POLICY}
    for name, options in (("model", LLMOptions), ("mixture", MixtureOptions)):
        nested = others.get(name, {})
        if isinstance(nested, Mapping):
            for key in nested:
                fields = [field.name for field in msgspec.structs.fields(options)]
                _check_name(str(key), fields, f"setting of {where}, {name},")
    for name, known in _NAMED.items():
        if isinstance(value := others.get(name), str):
            _check_name(value, known, f"{name} (in {where})")
    try:
        return msgspec.convert({**others, "policy": policy}, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise SettingError(f"In {where}: {excerpt(error)}") from error


def merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A table over one that several share; tables in them field by field."""
    both = {
        name: {**shared[name], **value}
        for name, value in own.items()
        if isinstance(value, Mapping) and isinstance(shared.get(name), Mapping)
    }
    return {**shared, **own, **both}


def policy_of(settings: SearchSettings, device: str) -> Policy:
    """The policy of a search on a device. Raises PolicyError."""
    begun = open_policy(device, settings.proposer, settings.surrogate, settings.surrogate_candidates)
    return msgspec.structs.replace(begun, **settings.policy)


def run_configuration(
    settings: SearchSettings,
    *,
    task: str,
    device: str,
    architecture: str,
    seed: int,
    budget: Budget,
    executor: ExecutorOptions = LOCAL,
    judging: str = "",
) -> Configuration:
    """What makes a run; `judging` is the kind of device that judges, where `device` doesn't say it.

    Raises PolicyError, and ModelError where a model lacks its name.
    """
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
        policy=policy_of(settings, judging or device),
        language=settings.language,
        forecasts=None if use is SurrogateUse.OFF else ForecastOptions(wait=settings.workers == 1),
        memory=None if settings.memory == "off" else str(Path(settings.memory).resolve()),
        llm=_llm(settings) if settings.asks_a_model else None,
        mixture=settings.mixture if settings.asks_a_model else None,
        judge=judge,
        reward=settings.reward,
        executor=executor,
    )


def check_complete(settings: SearchSettings, where: str) -> None:
    """Refuse settings that a search would fail over, before it begins. Raises SettingError."""
    try:
        policy = policy_of(settings, "model")
        if settings.asks_a_model:
            _llm(settings)
    except PolicyError as error:
        raise SettingError(f"In {where}: {error}") from error
    except ModelError as error:
        raise SettingError(f"The {where} asks a language model: {error}") from error
    if settings.surrogate is SurrogateUse.ORDER and policy.strategy != WALK:
        raise SettingError(
            f"In {where}: a surrogate that orders edits is for strategy {WALK}, not {policy.strategy}."
        )


def _llm(settings: SearchSettings) -> LLMOptions:
    try:
        return msgspec.convert({"model": "", **settings.model}, LLMOptions)
    except msgspec.ValidationError as error:
        raise ModelError(str(error)) from error


def _checked(name: str, value: object, where: str) -> str | int | float:
    """A policy's value, of the type that the policy has for it."""
    if name in CHOICES and isinstance(value, str):
        _check_name(value, CHOICES[name], f"{name} (in {where})")
    try:
        found: str | int | float = msgspec.convert(value, POLICY[name])
    except msgspec.ValidationError as error:
        raise SettingError(f"In {where}: {name}: {error}") from error
    return found


_NAMED: Mapping[str, tuple[str, ...]] = {
    "proposer": PROPOSERS,
    "reward": tuple(REWARDS),
    "surrogate": tuple(use.value for use in SurrogateUse),
    "language": (Language.CUDA.value, Language.TRITON.value),
}
"""Settings that are one of some names; rewards that a user enters later are known then."""


def _check_name(name: str, known: Iterable[str], what: str) -> None:
    if sentence := unknown_name(name, known, what):
        raise SettingError(sentence)
