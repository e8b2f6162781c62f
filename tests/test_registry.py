"""Parts that are exchanged by name."""

from pathlib import Path

import msgspec
import pytest

from mctskernel import registry
from mctskernel.core.user_errors import MisuseError
from mctskernel.registry import BUILT_IN, RegistryError, find, find_function, names, options_of, register


class Options(msgspec.Struct, frozen=True):
    """Options of a registered part."""

    weight: float = 1.0


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that announces a reward, and one whose module is missing."""
    (tmp_path / "their_rewards.py").write_text(
        "def half(number):\n    return number / 2\n\n\ndef bad(number):\n    return 1 / 0\n"
    )
    metadata = tmp_path / "their_rewards-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-rewards\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[mctskernel.reward]\nhalf = their_rewards:half\nbad = their_rewards:bad\nlost = lost_module:reward\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, known in BUILT_IN.items() for name in known]
)
def test_everything_built_in_can_be_imported(kind: str, name: str) -> None:
    assert callable(find(kind, name))


def test_a_registered_part_has_its_options_and_replaces_nothing_built_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register("reward", "mine", len, Options)
    assert find("reward", "mine") is len
    assert options_of("reward", "mine") is Options
    assert options_of("reward", "time") is None
    assert names("reward")[-1] == "mine"
    with pytest.raises(RegistryError, match="already"):
        register("reward", "time", len)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tine", "There is no reward 'tine'. Did you mean 'time'?"),
        (
            "xyz",
            "There is no reward 'xyz'; there are composite, time, unguarded, half, bad, lost. One of your own",
        ),
        ("lost", "The reward 'lost' can't be imported: ModuleNotFoundError: No module named 'lost_module'"),
        ("their_rewards:quarter", "no attribute 'quarter'"),
    ],
)
def test_what_cannot_be_found_is_said_in_a_sentence(name: str, says: str) -> None:
    with pytest.raises(RegistryError) as error:
        find("reward", name)
    assert says in str(error.value)


@pytest.mark.usefixtures("installed")
def test_a_part_that_raises_is_named_with_the_line() -> None:
    with pytest.raises(
        MisuseError, match=r"reward 'bad' raised ZeroDivisionError.*their_rewards.py:6.*resume"
    ):
        find_function("reward", "bad")(1)
