from __future__ import annotations

from collections import Counter

from mctskernel.executors.ray.roster import Node, Plan, Role, openings

NODES = (Node("head", cpus=4, gpus=0), Node("large", cpus=8, gpus=4), Node("small", cpus=1, gpus=1))
EVERYTHING = Plan((Role.EVALUATOR,), {})


def test_every_cpu_gets_an_evaluator_and_every_gpu_a_judge() -> None:
    found = Counter(openings(NODES, {}, EVERYTHING))
    assert found == {("head", Role.EVALUATOR): 4, ("large", Role.EVALUATOR): 8, ("small", Role.EVALUATOR): 1}
    found = Counter(openings(NODES, {}, Plan((Role.JUDGE, Role.COMPILER), {Role.COMPILER: 0})))
    assert found == {("large", Role.JUDGE): 4, ("small", Role.JUDGE): 1}


def test_a_bound_holds_for_the_whole_cluster_and_fills_the_emptiest_node_first() -> None:
    taken = {("large", Role.COMPILER): 6}
    found = openings(NODES, taken, Plan((Role.COMPILER,), {Role.COMPILER: 8}))
    assert found == [("head", Role.COMPILER)] * 2


def test_only_what_came_is_filled() -> None:
    taken = Counter(openings(NODES[:1], {}, EVERYTHING))
    assert openings(NODES[:1], taken, EVERYTHING) == []
    assert Counter(openings(NODES, taken, EVERYTHING)).keys() == {
        ("large", Role.EVALUATOR),
        ("small", Role.EVALUATOR),
    }
    assert openings((), taken, EVERYTHING) == []
