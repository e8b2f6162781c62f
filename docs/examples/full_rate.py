"""Write problems that libraries compute at full rate (products, convolutions, attention) in SOL-ExecBench's form.

    python docs/examples/full_rate.py FOLDER
    mctskernel bench FOLDER --seconds-per-problem 20 --out OUT

Products are named after their rows, columns and terms; `A B^T`, as of linear layers, unless they are batched. The
choice of tiles was fitted to times of those in `product`, not of those in `layer`.
"""

import json
import sys
from pathlib import Path

HEAD = "import torch\nimport torch.nn.functional as F\n\n\ndef run({names}):\n    return {result}\n"
TF32 = "import torch\n\ntorch.backends.cuda.matmul.allow_tf32 = True\n\n\n"

LINEAR = ({"x": "m k", "weight": "n k"}, "m n", "x @ weight.t()")
GELU = ({"x": "m k", "weight": "n k", "bias": "n"}, "m n", "F.gelu(F.linear(x, weight, bias))")
FP8 = (
    {"x": "m k", "weight": "n k"},
    "m n",
    "torch._scaled_mm(x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn).t(), torch.ones((), device=x.device), "
    "torch.ones((), device=x.device), out_dtype=torch.bfloat16)",
)
BATCHED = ({"x": "b m k", "y": "b k n"}, "b m n", "x @ y")
HEADS = {"q": "b h m d", "k": "b h n d", "v": "b h n d"}
ATTENTION = (HEADS, "b h m d", "F.scaled_dot_product_attention(q, k, v)")
CAUSAL = (HEADS, "b h m d", "F.scaled_dot_product_attention(q, k, v, is_causal=True)")
CONVOLUTION = ({"x": "b c h w", "weight": "o c 3 3"}, "b o h w", "F.conv2d(x, weight, padding=1)")

PRODUCTS = """
    17x4096x4096 130x16384x4096 512x512x32768 1000x4000x2008 1304x1304x1304 2048x11008x4096 3000x3000x3000
    4096x4096x4096 4104x1032x4104 6152x6152x640 8192x320x1280 8192x8192x8192 16384x1024x1024 256x2048x2048
"""

LAYERS = """
    33x5120x5120 64x12288x4096 128x8192x8192 512x28672x8192 777x3072x768 2048x1024x512 2560x7168x2048
    3136x1536x384 4096x14336x4096 8192x512x256 12608x768x3072 12608x3072x768
"""


def write(
    folder: Path, computed: tuple[dict[str, str], str, str], name: str, dtype: str, **sizes: int
) -> None:
    """Write a problem: the axes of its inputs and of its result, and what that is, at some sizes. Only d is fixed."""
    inputs, out, result = computed
    tf32 = TF32 if name.startswith("tf32") else ""
    place = folder / f"{name}_{'x'.join(map(str, sizes.values()))}"
    fixed = {axis: size for axis, size in sizes.items() if axis == "d"}

    def tensor(axes: str) -> dict[str, object]:
        return {"shape": axes.split(), "dtype": dtype}

    definition = {
        "name": place.name,
        "axes": {
            axis: {"type": "const", "value": fixed[axis]} if axis in fixed else {"type": "var"}
            for axis in sizes
        },
        "inputs": {each: tensor(axes) for each, axes in inputs.items()},
        "outputs": {"out": tensor(out)},
        "reference": tf32 + HEAD.format(names=", ".join(inputs), result=result),
    }
    workload = {
        "uuid": place.name,
        "axes": {axis: size for axis, size in sizes.items() if axis not in fixed},
        "inputs": {each: {"type": "random"} for each in inputs},
    }
    place.mkdir(parents=True, exist_ok=True)
    (place / "definition.json").write_text(json.dumps(definition, indent=2), encoding="utf-8")
    (place / "workload.jsonl").write_text(json.dumps(workload) + "\n", encoding="utf-8")


def main(folder: Path) -> None:
    """Write all of them, in folders for each kind."""
    bf16, fp32 = "bfloat16", "float32"
    attention, convolution, product = (folder / each for each in ("attention", "convolution", "product"))
    write(attention, CAUSAL, "bf16_causal", bf16, b=4, h=16, m=2048, n=2048, d=128)
    write(attention, ATTENTION, "bf16", bf16, b=4, h=16, m=2048, n=2048, d=128)
    write(attention, ATTENTION, "bf16_few_queries", bf16, b=4, h=8, m=4, n=16384, d=128)
    write(attention, ATTENTION, "fp32", fp32, b=4, h=16, m=2048, n=2048, d=64)
    for name, dtype in (("bf16", bf16), ("tf32", fp32)):
        write(convolution, CONVOLUTION, name, dtype, b=16, c=64, h=112, w=112, o=64)
    for m, n, k in (map(int, each.split("x")) for each in PRODUCTS.split()):
        write(product, LINEAR, "bf16", bf16, m=m, n=n, k=k)
    for m, n, k in (map(int, each.split("x")) for each in LAYERS.split()):
        write(folder / "layer", LINEAR, "bf16", bf16, m=m, n=n, k=k)
    write(product, GELU, "bf16_gelu", bf16, m=4096, n=4096, k=4096)
    write(folder / "layer", GELU, "bf16_gelu", bf16, m=12608, n=3072, k=768)
    write(product, BATCHED, "bf16_batched", bf16, b=96, m=328, n=328, k=328)
    write(folder / "layer", BATCHED, "bf16_batched", bf16, b=32, m=1024, n=1024, k=64)
    write(product, LINEAR, "fp16", "float16", m=8192, n=8192, k=8192)
    write(product, LINEAR, "tf32", fp32, m=2048, n=2048, k=2048)
    for name, computed, dtype in (
        ("fp16", LINEAR, "float16"),
        ("fp32", LINEAR, fp32),
        ("tf32", LINEAR, fp32),
        ("fp8", FP8, bf16),
    ):
        write(product, computed, name, dtype, m=4096, n=4096, k=4096)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
