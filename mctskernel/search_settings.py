"""What a search is set to by a table of a configuration: an arm of an ablation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mctskernel.core.budget import Budget
from mctskernel.core.documents import excerpt, unknown_name
from mctskernel.core.executor import LOCAL, ExecutorOptions, ForecastOptions
from mctskernel.core.kernel import Language
from mctskernel.core.user_errors import MisuseError
from mctskernel.edits.llm.experts import MixtureOptions
from mctskernel.edits.llm.model import LLMOptions, ModelError
from mctskernel.profiling.reward import DEFAULT as DEFAULT_REWARD
from mctskernel.proposers import ASK_A_MODEL, LLM, MIXED, OUTSIDE, RULES
from mctskernel.registry import RegistryError, check_name
from mctskernel.run import Configuration
from mctskernel.tree.choices import choice_names, with_choices
from mctskernel.tree.policy import Policy, PolicyError

PROPOSERS = (RULES, LLM, MIXED)

PREDICTED = "mcts"
"""The strategy that a surrogate's predictions are for."""

REPLIES = 3
"""Replies without a new kernel after which a node is given up, where a proposer replies differently each time."""


class SettingError(MisuseError, ValueError):
    """Settings that can't be used; the message is a sentence that says where they stand."""


class SearchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may differ between searches. `policy` holds the choices of a policy that are made.

    With a `surrogate`, edits are predicted. `workers` are evaluations in flight. `memory` is "off" or
    a file. `model` holds options of a language model, by the names of `LLMOptions`, and `mixture` those of its experts.
    """

    policy: Mapping[str, str | int | float] = {}
    proposer: str = RULES
    language: Language = Language.CUDA
    reward: str = DEFAULT_REWARD
    surrogate: bool = False
    workers: int = 1
    memory: str = "off"
    model: Mapping[str, str | int | float] = {}
    mixture: MixtureOptions = MixtureOptions()

    @property
    def asks_a_model(self) -> bool:
        """Whether a language model is needed."""
        return self.proposer in ASK_A_MODEL


Settings = TypeVar("Settings", bound=SearchSettings)


def field_names(kind: type[SearchSettings]) -> tuple[str, ...]:
    """The fields beside those of the policy, which stand among them."""
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.name != "policy")


def read_settings(table: Mapping[str, Any], where: str, kind: type[Settings]) -> Settings:
    """Settings of a table in which those of the policy stand among the others. Raises SettingError."""
    policy = _policy_choices(table, where, field_names(kind))
    others = {name: value for name, value in table.items() if name not in policy}
    for name, options in (("model", LLMOptions), ("mixture", MixtureOptions)):
        nested = others.get(name, {})
        if isinstance(nested, Mapping):
            for key in nested:
                fields = [field.name for field in msgspec.structs.fields(options)]
                _check_name(str(key), fields, f"setting of {where}, {name},")
    if isinstance(reward := others.get("reward"), str):
        try:
            check_name("reward", reward)
        except RegistryError as error:
            raise SettingError(f"In {where}: {error}") from error
    for name, known in _NAMED.items():
        if isinstance(value := others.get(name), str):
            _check_name(value, known, f"{name} (in {where})")
    try:
        return msgspec.convert({**others, "policy": policy}, kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise SettingError(f"In {where}: {excerpt(error)}") from error


def _policy_choices(table: Mapping[str, Any], where: str, other_names: Iterable[str]) -> dict[str, Any]:
    """What a table chooses of a policy, checked."""
    try:
        known = choice_names(str(table.get("strategy", Policy().strategy)))
        for name in table:
            _check_name(name, (*other_names, *known), f"setting of {where}")
        found = {name: value for name, value in table.items() if name in known}
        with_choices(Policy(), found)
    except (PolicyError, RegistryError) as error:
        raise SettingError(f"In {where}: {error}") from error
    return found


def merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A table over one that several share; tables in them field by field."""
    both = {
        name: {**shared[name], **value}
        for name, value in own.items()
        if isinstance(value, Mapping) and isinstance(shared.get(name), Mapping)
    }
    return {**shared, **own, **both}


def open_policy(proposer: str) -> Policy:
    """The policy where nothing else is chosen: one whose every reply is another is asked again, and repairs at once."""
    if proposer in ASK_A_MODEL | {OUTSIDE}:
        return Policy(patience=REPLIES, repair="at-once")
    return Policy()


def policy_of(settings: SearchSettings) -> Policy:
    """The policy of a search. Raises PolicyError and RegistryError."""
    return with_choices(open_policy(settings.proposer), settings.policy)


def run_configuration(
    settings: SearchSettings,
    *,
    task: str,
    device: str,
    architecture: str,
    seed: int,
    budget: Budget,
    executor: ExecutorOptions = LOCAL,
) -> Configuration:
    """What makes a run.

    Raises PolicyError, and ModelError where a model lacks its name.
    """
    return Configuration(
        task=task,
        device=device,
        architecture=architecture,
        proposer=settings.proposer,
        seed=seed,
        workers=settings.workers,
        budget=budget,
        policy=policy_of(settings),
        language=settings.language,
        forecasts=ForecastOptions(wait=settings.workers == 1) if settings.surrogate else None,
        memory=None if settings.memory == "off" else str(Path(settings.memory).resolve()),
        llm=_llm(settings) if settings.asks_a_model else None,
        mixture=settings.mixture if settings.asks_a_model else None,
        reward=settings.reward,
        executor=executor,
    )


def check_complete(settings: SearchSettings, where: str) -> None:
    """Refuse settings that a search would fail over, before it begins. Raises SettingError."""
    try:
        policy = policy_of(settings)
        if settings.asks_a_model:
            _llm(settings)
    except PolicyError as error:
        raise SettingError(f"In {where}: {error}") from error
    except ModelError as error:
        raise SettingError(f"The {where} asks a language model: {error}") from error
    if settings.surrogate and policy.strategy != PREDICTED:
        raise SettingError(f"In {where}: a surrogate is for strategy {PREDICTED}, not {policy.strategy}.")


def _llm(settings: SearchSettings) -> LLMOptions:
    try:
        return msgspec.convert({"model": "", **settings.model}, LLMOptions)
    except msgspec.ValidationError as error:
        raise ModelError(str(error)) from error


_NAMED: Mapping[str, tuple[str, ...]] = {
    "proposer": PROPOSERS,
    "language": (Language.CUDA.value, Language.TRITON.value),
}
"""Settings that are one of some names."""


def _check_name(name: str, known: Iterable[str], what: str) -> None:
    if sentence := unknown_name(name, known, what):
        raise SettingError(sentence)
