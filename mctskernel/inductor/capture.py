"""Compiling a function with torch.compile, and keeping what it generated and how its autotuner would launch it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mctskernel.inductor.candidate import Config
from mctskernel.inductor.generated import InductorError

MODE = "max-autotune-no-cudagraphs"
"""CUDA graphs would change how the kernels are launched, not what they do."""


@dataclass(frozen=True)
class Captured:
    """A generated module. `inputs` are parameters of the function, in the order in which the module takes them.

    `run` calls the compiled function once more, on the tensors that it was compiled for.
    """

    source: str
    configs: Mapping[str, Config]
    inputs: tuple[str, ...]
    run: Callable[[], object]


def tuned_options() -> dict[str, object]:
    """PyTorch's options of `MODE`."""
    from torch._inductor import list_mode_options  # noqa: PLC0415 - an extra

    return dict(list_mode_options(MODE))


def capture(
    function: Callable[..., Any], tensors: Mapping[str, Any], options: Mapping[str, object]
) -> Captured:
    """Compile a function and run it once, on tensors of a GPU by the names of its parameters.

    `options` are torch.compile's. Raises InductorError where it isn't compiled as one graph, or not at all.
    """
    import torch  # noqa: PLC0415 - an extra
    from torch._inductor import utils  # noqa: PLC0415
    from torch._inductor.compile_fx import compile_fx  # noqa: PLC0415

    inputs: list[str] = []

    def backend(graph: Any, examples: Any) -> Any:
        inputs.extend(_placeholders(graph, tensors))
        return compile_fx(graph, examples, config_patches=dict(options))

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, dynamic=False)
    with utils.fresh_cache():
        try:
            _, sources = utils.run_and_get_code(compiled, *tensors.values())
        except Exception as error:
            said = (str(error).strip().splitlines() or ["no message"])[0]
            raise InductorError(f"torch.compile fails: {type(error).__name__}: {said}") from error
        if len(sources) != 1:
            raise InductorError(
                f"torch.compile breaks this function into {len(sources)} graphs; only a single one can be a candidate."
            )
        configs = _configs(sources[0])
    return Captured(sources[0], configs, tuple(inputs), lambda: compiled(*tensors.values()))


def helpers_source() -> str:
    """The text of the functions that generated kernels call."""
    from torch._inductor.runtime import triton_helpers  # noqa: PLC0415 - an extra

    return inspect.getsource(triton_helpers)


def _placeholders(graph: Any, parameters: Iterable[str]) -> list[str]:
    known = {f"L_{name}".rstrip("_"): name for name in parameters}
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "placeholder"]
    return [known.get(target.rstrip("_"), target) for target in targets]


def _configs(source: str) -> dict[str, Config]:
    """The configuration that each kernel of a module was launched with, which its autotuner chose."""
    from torch._inductor.codecache import PyCodeCache  # noqa: PLC0415 - an extra

    found: dict[str, Config] = {}
    for module in PyCodeCache.modules:
        if _text(module) != source:
            continue
        for name, kernel in vars(module).items():
            launchers = getattr(kernel, "launchers", None)
            if launchers:
                config = launchers[0].config
                found[name] = Config(
                    {key: value for key, value in config.kwargs.items() if isinstance(value, int)},
                    config.num_warps,
                    config.num_stages,
                )
    return found


def _text(module: Any) -> str:
    try:
        return Path(module.__file__).read_text("utf-8")
    except (OSError, TypeError, AttributeError):
        return ""
