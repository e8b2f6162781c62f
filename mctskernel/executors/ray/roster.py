"""Which evaluators a cluster has room for. Knows nothing of Ray."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mctskernel.executors.ray.assignment import Stage

FAILURES = 3
"""How often evaluators may fail in a place before it is left alone: on a broken GPU, or without the package."""


class Role(enum.Enum):
    """What an evaluator does."""

    EVALUATOR = "evaluator"
    """Everything, on a CPU."""
    JUDGE = "judge"
    """Holds a GPU."""
    COMPILER = "compiler"
    """Builds for those that hold one."""

    @property
    def serves(self) -> frozenset[Stage]:
        """The stages that it can be asked for."""
        return frozenset({Stage.BUILD}) if self is Role.COMPILER else frozenset({Stage.JUDGE, Stage.GATE})


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, and what Ray may place there."""

    name: str
    cpus: int
    gpus: int


Place = tuple[str, Role]
"""The name of a node, and what an evaluator does there."""


@dataclass(frozen=True)
class Plan:
    """The roles that are wanted, the most important first: as many as fit, or in the whole cluster at most so many."""

    roles: tuple[Role, ...]
    most: Mapping[Role, int]


def openings(nodes: Sequence[Node], taken: Mapping[Place, int], plan: Plan) -> list[Place]:
    """Where further evaluators fit, beside those that are there; the emptiest node comes first."""
    found: list[Place] = []
    counted = Counter(taken)
    for role in plan.roles:
        most = plan.most.get(role)
        while place := _roomiest(nodes, counted, role):
            if most is not None and sum(counted[node.name, role] for node in nodes) >= most:
                break
            counted[place] += 1
            found.append(place)
    return found


def _roomiest(nodes: Sequence[Node], taken: Mapping[Place, int], role: Role) -> Place | None:
    room = {
        node.name: (node.gpus if role is Role.JUDGE else node.cpus) - taken[node.name, role] for node in nodes
    }
    best = max(room, key=lambda name: room[name], default=None)
    return (best, role) if best is not None and room[best] > 0 else None
