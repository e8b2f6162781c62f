"""Launch plans are written back without losing what a person wrote."""

from dataclasses import replace

from mctskernel.core.kernel import Kernel
from mctskernel.core.launch_plan import Scratch, plan_of
from mctskernel.edits.plan_text import with_plan

SOURCE = """\
/*
# two launches
[[launch]]
kernel = "f"
grid = ["ceil_div(n, 64)"]   # one thread each
block = [64]
args = ["x", "partial"]

[[launch]]
kernel = "g"
grid = [1]
block = [64]
shared = "64 * 4"
args = ["partial", "out"]

[[scratch]]
name = "partial"
shape = ["n"]
*/
__global__ void f() {}
"""


def test_only_what_differs_is_rewritten() -> None:
    kernel = Kernel(SOURCE)
    plan = plan_of(kernel)
    first = replace(plan.launches[0], block=(128,))
    changed = with_plan(kernel, replace(plan, launches=(first, plan.launches[1])))
    assert changed.source == SOURCE.replace("block = [64]", "block = [128]", 1)


def test_launches_and_buffers_come_and_go() -> None:
    kernel = Kernel(SOURCE)
    plan = plan_of(kernel)
    more = replace(
        plan,
        launches=(*plan.launches, replace(plan.launches[1], kernel="h", shared=0)),
        scratch=(*plan.scratch, Scratch("flags", (4,), "int32", zero=True)),
    )
    grown = with_plan(kernel, more)
    assert plan_of(grown) == more
    assert "# two launches" in grown.source
    fewer = replace(plan, launches=plan.launches[:1], scratch=())
    assert plan_of(with_plan(grown, fewer)) == fewer
    assert with_plan(grown, fewer).source.endswith("__global__ void f() {}\n")
