"""Attention that materialises no scores: one pass over the keys on tensor cores, many queries per block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tree_sitter import Node

from mctskernel.core.edit import Category
from mctskernel.core.launch_plan import Launch
from mctskernel.edits import syntax as cu
from mctskernel.edits.affine import definitions, polynomial
from mctskernel.edits.device_code import ALIGNED, fragment_functions, function_text, with_headers
from mctskernel.edits.indexing import code, distinct_arguments, expression, inlined, match
from mctskernel.edits.rewrite import Rewrite, apply, only_launches, with_launch
from mctskernel.edits.rule import Context, Proposal, rule

WARP = 32
INTEGERS = frozenset({"int", "unsigned", "unsigned int"})
CONVERSIONS = {
    "__nv_bfloat16": ("__bfloat162float", frozenset({"__float2bfloat16", "__float2bfloat16_rn"})),
    "__half": ("__half2float", frozenset({"__float2half", "__float2half_rn"})),
}
"""To float and back, by the type of the elements."""
EXPONENTIALS = frozenset({"expf", "__expf", "exp"})
SCALES = frozenset({"rsqrtf", "sqrtf", "powf", "__frsqrt_rn", "__fsqrt_rn"})

CAUSAL = """
for (int $key = $warp; $key <= $last; $key += $warps) {
    float $score = 0.0f;
    for (int $i = $lane; $i < $dim; $i += 32) {
        $score += $convert($left[$left_index]) * $convert($right[$right_index]);
    }
    for (int $offset = 16; $offset > 0; $offset /= 2) {
        $score += __shfl_xor_sync(0xffffffff, $score, $offset);
    }
    if ($lane == 0) {
        $weights[$key] = $score * $scale;
    }
}
__syncthreads();
float $largest = $weights[0];
for (int $key2 = $thread; $key2 <= $last; $key2 += $threads) {
    $largest = fmaxf($largest, $weights[$key2]);
}
$partial[$thread] = $largest;
__syncthreads();
for (int $stride = $threads / 2; $stride > 0; $stride /= 2) {
    if ($thread < $stride) {
        $partial[$thread] = fmaxf($partial[$thread], $partial[$thread + $stride]);
    }
    __syncthreads();
}
$largest = $partial[0];
__syncthreads();
float $sum = 0.0f;
for (int $key3 = $thread; $key3 <= $last; $key3 += $threads) {
    $weights[$key3] = $exp($weights[$key3] - $largest);
    $sum += $weights[$key3];
}
$partial[$thread] = $sum;
__syncthreads();
for (int $stride2 = $threads / 2; $stride2 > 0; $stride2 /= 2) {
    if ($thread < $stride2) {
        $partial[$thread] += $partial[$thread + $stride2];
    }
    __syncthreads();
}
for (int $i2 = $thread; $i2 < $dim; $i2 += $threads) {
    float $total = 0.0f;
    for (int $key4 = 0; $key4 <= $last; ++$key4) {
        $total += $weights[$key4] * $convert($values[$value_index]);
    }
    $out[$out_index] = $round($total / $partial[0]);
}
"""
FULL = CAUSAL.replace("<= $last", "< $last")
"""The same over all keys."""


@dataclass(frozen=True)
class Attention:
    """out = softmax(scale * queries keys^T) values for each head, all contiguous (head, sequence, dim).

    Names are those of parameters; `head` is a head's number in the kernel's words, `scale` an expression over
    parameters. The grid has `heads` heads along y and the sequence's `length`, in the plan's words, along x.
    """

    queries: str
    keys: str
    values: str
    out: str
    element: str
    length: str
    dim: str
    scale: str
    causal: bool
    planned_length: str
    planned_dim: str


def attention_of(context: Context, launch: Launch, function: cu.Function) -> Attention | None:
    """The attention that a kernel computes, if it is one for certain."""
    statements = code(function.body)
    count = next((i for i, node in enumerate(statements) if node.type != "declaration"), len(statements))
    for causal, template in ((True, CAUSAL), (False, FULL)):
        bound = match(template, statements[count:])
        if bound is not None:
            return _understood(context, launch, function, bound, causal=causal)
    return None


def _understood(
    context: Context, launch: Launch, function: cu.Function, bound: Mapping[str, Node], *, causal: bool
) -> Attention | None:
    if not distinct_arguments(launch) or len(launch.grid) != 2:
        return None
    name = {key: cu.text_of(node) for key, node in bound.items()}
    planned = {p.name: str(argument) for p, argument in zip(function.parameters, launch.args, strict=False)}
    lengths = [parameter for parameter, argument in planned.items() if argument == str(launch.grid[0])]
    element = _element(function, name)
    if len(lengths) != 1 or element is None or not _whole_numbers(function, lengths[0], name["dim"]):
        return None
    length = lengths[0]
    known = definitions(function)
    if not _declared_well(function, name) or not _threads_fit(context, launch, bound, known):
        return None
    convert, rounds = CONVERSIONS[element]
    if name["convert"] != convert or name["round"] not in rounds or name["exp"] not in EXPONENTIALS:
        return None
    line, last = ("blockIdx.x", "blockIdx.x") if causal else ("blockIdx.x", length)
    key, key4, i, i2, dim = (name[part] for part in ("key", "key4", "i", "i2", "dim"))
    expected = {
        "last": last,
        "thread": "threadIdx.x",
        "left_index": f"(blockIdx.y * {length} + {line}) * {dim} + {i}",
        "right_index": f"(blockIdx.y * {length} + {key}) * {dim} + {i}",
        "value_index": f"(blockIdx.y * {length} + {key4}) * {dim} + {i2}",
        "out_index": f"(blockIdx.y * {length} + {line}) * {dim} + {i2}",
    }
    left, right = "left_index", "right_index"
    if str(polynomial(bound["left_index"], known)) == str(polynomial(expression(expected["right_index"]))):
        left, right = right, left
    actual = {**bound, "left_index": bound[left], "right_index": bound[right]}
    if any(
        str(polynomial(actual[part], known)) != str(polynomial(expression(text)))
        for part, text in expected.items()
    ):
        return None
    scale = _scale(function, bound["scale"], known)
    if scale is None:
        return None
    queries, keys = (name[part.removesuffix("_index")] for part in (left, right))
    return Attention(
        queries, keys, name["values"], name["out"], element, length, dim, scale, causal,
        str(launch.grid[0]), planned[dim],
    )  # fmt: skip


def _element(function: cu.Function, name: Mapping[str, str]) -> str | None:
    """The type of the elements, if all four buffers are different pointers to it."""
    buffers = [function.parameter(name[part]) for part in ("left", "right", "values", "out")]
    types = {buffer.type if buffer is not None and buffer.pointer else "" for buffer in buffers}
    if len({name[part] for part in ("left", "right", "values", "out")}) < len(buffers) or len(types) != 1:
        return None
    element = {"nv_bfloat16": "__nv_bfloat16", "half": "__half"}.get(found := types.pop(), found)
    return element if element in CONVERSIONS else None


def _whole_numbers(function: cu.Function, *names: str) -> bool:
    found = [function.parameter(name) for name in names]
    return all(p is not None and not p.pointer and p.type in INTEGERS for p in found)


def _declared_well(function: cu.Function, name: Mapping[str, str]) -> bool:
    """Whether the weights and the partial results are shared floats, and nothing else is declared that could matter."""
    shared = {d.name: d for d in function.declarations if d.shared}
    weights, partial = shared.pop(name["weights"], None), shared.pop(name["partial"], None)
    if weights is None or partial is None or shared:
        return False
    if {weights.type, partial.type} != {"float"} or len(weights.extents) != 1 or len(partial.extents) != 1:
        return False
    inside = {name[part] for part in ("score", "largest", "sum", "total")}
    return all(_is_harmless(d, inside) for d in function.declarations if not d.shared)


def _is_harmless(declaration: cu.Declaration, floats: set[str]) -> bool:
    """Whether a declaration is one of the template's, a whole number, or a number that a few functions give."""
    if declaration.pointer or declaration.extents or declaration.type not in INTEGERS | {"float"}:
        return False
    value = declaration.value
    if value is None or declaration.name in floats:
        return True
    only = len(cu.calls(value)) == len(cu.calls(value, *SCALES))
    return only and (declaration.type == "float" or not cu.calls(value))


def _threads_fit(
    context: Context, launch: Launch, bound: Mapping[str, Node], known: Mapping[str, Node]
) -> bool:
    """Whether keys are dealt out to the warps, all else to the threads, of blocks that are a power of two."""
    threads = cu.text_of(bound["threads"])
    size, warps = context.constant(threads), context.constant(cu.text_of(bound["warps"]).replace("/", "//"))
    if size is None or warps is None or len(launch.block) != 1 or context.constant(launch.block[0]) != size:
        return False
    if size & (size - 1) or warps * WARP != size:
        return False
    words = {part: inlined(bound[part], known, frozenset()) or "" for part in ("warp", "lane")}
    plain = {part: "".join(text.split()).replace("(", "").replace(")", "") for part, text in words.items()}
    return plain == {"warp": f"threadIdx.x/{WARP}", "lane": f"threadIdx.x%{WARP}"}


def _scale(function: cu.Function, node: Node, known: Mapping[str, Node]) -> str | None:
    """What scores are multiplied by, as a float over parameters."""
    types = {d.name: d.type for d in function.declarations}
    if any(types.get(name, "float") != "float" for name in cu.identifiers(node)):
        return None
    numbers = frozenset(p.name for p in function.parameters if not p.pointer)
    text = inlined(node, known, numbers | SCALES)
    if text is None or len(cu.calls(expression(text))) != len(cu.calls(expression(text), *SCALES)):
        return None
    return (
        text if not {"threadIdx.x", "blockIdx.x", "blockIdx.y"} & cu.identifiers(expression(text)) else None
    )


SIZES = ((64, 64), (128, 64), (64, 32), (128, 32))
"""Of a block: queries, and keys at a time."""
MOST_DIMS = 128
"""Of a head, that a warp has sums for in registers."""
MACROS = ("QUERIES", "KEYS", "DIMS", "THREADS")
WORDS = {
    "__nv_bfloat16": ("__floats2bfloat162_rn", "__bfloat162float", "__float2bfloat16"),
    "__half": ("__floats2half2_rn", "__half2float", "__float2half"),
}
"""Two floats to two elements, an element to float, and back."""


@rule(
    Category.ALGORITHM,
    3.0,
    "l2_bandwidth l1_throughput global_latency shared_throughput barriers instruction_issue fp32_pipe",
)
def tiled_attention(context: Context) -> Iterable[Proposal]:
    for launch, function in only_launches(context):
        found = attention_of(context, launch, function)
        dims = _dims(context, found) if found is not None else None
        if found is None or dims is None:
            continue
        for position, (queries, keys) in enumerate(SIZES):
            text = _tiled(context, launch, function, found, (queries, keys, dims))
            if text is None:
                continue
            yield Proposal(
                f"tiled attention on tensor cores ({queries} queries per block, tiles of {keys} keys)"
                f"{context.where(function.name)}",
                text,
                rationale=(
                    "Every query reads all of its keys and values by itself, and its weights go through shared "
                    "memory. A block of many queries reads a tile of keys and values once for all of them; maxima "
                    "and sums that are rescaled as they grow need no second pass, so that scores and weights never "
                    "leave the registers of the tensor cores' warps."
                ),
                expected_effect=f"{queries} times fewer reads of {found.keys} and {found.values}, products at the "
                "rate of tensor cores.",
                prior=1.0 - 0.1 * position,
            )


def _dims(context: Context, found: Attention) -> int | None:
    """The dimensions that a tile takes: all of those that are timed, in steps of 16, up to MOST_DIMS."""
    values = context.values(found.planned_dim)
    if values is None:
        return None
    largest = int(max(values[: len(context.task.search_shapes)]))
    return min(MOST_DIMS, -(-largest // 16) * 16)


def _tiled(
    context: Context, launch: Launch, function: cu.Function, found: Attention, sizes: tuple[int, int, int]
) -> str | None:
    source = context.source
    names = {macro: cu.fresh_name(source, macro) for macro in MACROS}
    aligned, space = cu.fresh_name(source, "is_aligned"), cu.fresh_name(source, "tiled_attention")
    pair, widen, narrow = WORDS[found.element]
    words = {
        **names,
        "space": space,
        "aligned": aligned,
        "element": found.element,
        "fragments": fragment_functions(found.element),
        "to_pair": pair,
        "to_float": widen,
        "from_float": narrow,
        "end": f"min(length, query0 + {names['QUERIES']})" if found.causal else "length",
        "whole": f"key0 + {names['KEYS']} <= {'query0 + 1' if found.causal else 'length'}",
        "visible": "key <= query" if found.causal else "key < length",
    }
    functions = function_text("attention", {}, **words)
    if (cu.identifiers(cu.parse(functions).root) - set(names.values())) & source.macro_names:
        return None
    queries, keys, dims = sizes
    Q, K, D, threads = (names[macro] for macro in MACROS)
    taken = {found.queries, found.keys, found.values, found.out, found.length, found.dim}
    key_tile, value_tile = (tile if tile not in taken else f"{tile}_" for tile in ("key_tile", "value_tile"))
    given = found.queries, found.keys, found.values, found.out, found.length, found.dim, found.scale
    body = [
        *(f"__shared__ alignas(16) {found.element} {tile}[{K}][{D} + 8];" for tile in (key_tile, value_tile)),
        f"{space}::attend({', '.join(given)}, {key_tile}, {value_tile});",
    ]
    grid = (f"ceil_div({found.planned_length}, {Q})", launch.grid[1], f"ceil_div({found.planned_dim}, {D})")
    rewrite = Rewrite(
        function,
        body=body,
        plan=with_launch(context.plan, launch, grid, (threads,), shared=0),
        about=f"A block attends to all keys of {Q} queries, {K} at a time; a warp has 16 of the queries.",
        defines={Q: queries, K: keys, D: dims, threads: f"({Q} / 16 * 32)"},
        functions=[ALIGNED.format(name=aligned), functions],
        more=with_headers(source, "cuda_pipeline_primitives.h"),
    )
    return apply(context, rewrite)
