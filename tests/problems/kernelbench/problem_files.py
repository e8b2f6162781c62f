"""Synthetic problems in KernelBench's format."""

from pathlib import Path

HEAD = "import torch\nimport torch.nn as nn\n"


def problem(
    forward: str,
    inputs: str = "torch.rand(8, 32)",
    *,
    init: str = "",
    arguments: str = "",
    given: str = "",
    head: str = "",
) -> str:
    """A problem's text: the body of forward, what get_inputs returns, and what the constructor does."""
    return f'''{HEAD}{head}

class Model(nn.Module):
    """Does a forward pass."""

    def __init__(self{", " + arguments if arguments else ""}):
        super().__init__()
        {init or "self.unused = None"}

    def forward(self, x{", y" if "y" in forward else ""}):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [{given}]
'''


LINEAR = problem(
    "return torch.nn.functional.gelu(self.linear(x))",
    "torch.rand(128, 96)",
    init="self.linear, self.spare = nn.Linear(i, o), nn.Linear(7, 7)",
    arguments="i, o",
    given="96, 64",
)
NORMALISED = problem(
    "return self.bn(x) * self.scale",
    "torch.randn(64, 24).cuda()",
    init="self.bn, self.scale = nn.BatchNorm1d(24), nn.Parameter(torch.ones(24))",
)
HINGE = problem(
    "return torch.mean(torch.clamp(1 - x * y, min=0))",
    "torch.rand(96, 32), torch.randint(0, 2, (96, 1)).float() * 2 - 1",
)
INDEXED = problem(
    "return x.gather(1, y[:, None]).sum(1)", "torch.rand(64, 40) * 3 - 1, torch.randint(0, 40, (64,))"
)
MASKED = problem(
    "return torch.triu(x @ x) * y + self.mask",
    "torch.triu(torch.rand(24, 24)), 3.5",
    init='self.register_buffer("mask", torch.tril(torch.ones(24, 24)))',
)


def written(folder: Path, text: str, name: str = "3_Some_problem_.py") -> Path:
    """A file with a problem."""
    path = folder / name
    path.write_text(text, "utf-8")
    return path
