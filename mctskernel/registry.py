"""Parts that can be exchanged by name: strategies, scores, rewards, proposers, devices.

A name is one of those built in, one that this process registered, one that an installed package announces as an
entry point in the group `mctskernel.<kind>`, or a path MODULE:ATTRIBUTE. Entry points and paths are found again by
every process: a resumed run, an ablation, a worker of a Ray cluster. Nothing is imported before it is looked up.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any

import msgspec

from mctskernel.core.documents import unknown_name
from mctskernel.core.user_errors import MisuseError, UserError

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "strategy": {
        "mcts": "mctskernel.tree.strategies.mcts:Mcts",
        "puct": "mctskernel.tree.strategies.puct:Puct",
        "uct": "mctskernel.tree.strategies.puct:Uct",
        "greedy": "mctskernel.tree.strategies.baselines:Greedy",
        "best-of-n": "mctskernel.tree.strategies.baselines:BestOfN",
        "beam": "mctskernel.tree.strategies.baselines:BeamSearch",
        "annealing": "mctskernel.tree.strategies.annealing:Annealing",
        "evolutionary": "mctskernel.tree.strategies.evolutionary:Evolutionary",
        "epsilon-net": "mctskernel.tree.strategies.baselines:EpsilonNet",
        "random": "mctskernel.tree.strategies.baselines:RandomSearch",
    },
    "reward": {
        "composite": "mctskernel.profiling.reward:composite",
        "time": "mctskernel.profiling.reward:time_alone",
        "unguarded": "mctskernel.profiling.reward:unguarded",
    },
    "proposer": {
        "rules": "mctskernel.edits.proposer:RuleProposer",
        "llm": "mctskernel.edits.llm.proposer:LLMProposer",
        "mixed": "mctskernel.edits.llm.proposer:MixedProposer",
        "outside": "mctskernel.edits.async_proposer:NoProposer",
    },
    "device": {
        "gpu": "mctskernel.executors.gpu:open_gpus",
        "model": "mctskernel.executors.local:open_local",
        "recorded": "mctskernel.executors.recorded:open_recorded",
    },
}
"""By kind and name, where the object is."""


class RegistryError(MisuseError, ValueError):
    """A name that stands for nothing, or an object that can't be imported; the message is a sentence."""


@dataclass(frozen=True)
class _Registered:
    object: Any
    options: type[msgspec.Struct] | None


_registered: dict[tuple[str, str], _Registered] = {}


def register(kind: str, name: str, object: Any, options: type[msgspec.Struct] | None = None) -> None:
    """Add a part to this process, with the struct of its options. Replaces nothing that is built in."""
    if name in BUILT_IN[kind]:
        raise RegistryError(f"There is a {kind} '{name}' already.")
    _registered[kind, name] = _Registered(object, options)


def names(kind: str) -> tuple[str, ...]:
    """All names of a kind: those built in, then those registered, then those of installed packages."""
    own = (name for known, name in _registered if known == kind)
    return tuple(dict.fromkeys([*BUILT_IN[kind], *own, *_installed(kind)]))


def check_name(kind: str, name: str) -> None:
    """Raise RegistryError for a name that isn't known and no path, without importing anything."""
    if name in BUILT_IN[kind] or ":" in name:
        return
    if complaint := unknown_name(name, names(kind), kind):
        raise RegistryError(f"{complaint} One of your own is given as MODULE:ATTRIBUTE.")


def find(kind: str, name: str) -> Any:
    """The object of a name or of a path MODULE:ATTRIBUTE. Raises RegistryError."""
    check_name(kind, name)
    if name in BUILT_IN[kind]:
        return _imported(BUILT_IN[kind][name])
    if (kind, name) in _registered:
        return _registered[kind, name].object
    installed = _installed(kind).get(name)
    path = installed.value if installed else name
    try:
        return _imported(path)
    except Exception as error:
        raise RegistryError(
            f"The {kind} '{name[:80]}' can't be imported: {type(error).__name__}: {error}. "
            "Is its package installed, or on PYTHONPATH?"
        ) from error


def options_of(kind: str, name: str) -> type[msgspec.Struct] | None:
    """The struct of a part's options: as registered, or its attribute `Options`; None without options."""
    found = _registered.get((kind, name))
    return found.options if found and found.options else getattr(find(kind, name), "Options", None)


@contextmanager
def in_use(kind: str, name: str) -> Iterator[None]:
    """Around each use of a part: what a user's own one raises becomes a MisuseError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) or name in BUILT_IN[kind]:
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise MisuseError(
            f"The {kind} '{name}' raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno}). "
            "Every finished evaluation is saved: correct it, then go on with `mctskernel resume`."
        ) from error


def find_function(kind: str, name: str) -> Callable[..., Any]:
    """`find` for a function: a user's own one is called `in_use`."""
    function: Callable[..., Any] = find(kind, name)
    if name in BUILT_IN[kind]:
        return function

    def call(*args: Any, **options: Any) -> Any:
        with in_use(kind, name):
            return function(*args, **options)

    return call


def _imported(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return attrgetter(attribute)(import_module(module))


def _installed(kind: str) -> Mapping[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=f"mctskernel.{kind}")}
