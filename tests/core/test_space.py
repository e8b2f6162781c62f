"""Configurations as kernels, and back."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mctskernel.core.evaluation import Outcome
from mctskernel.core.kernel import Kernel, Language
from mctskernel.core.space import (
    Configuration,
    Entry,
    Parameter,
    SearchSpace,
    SpaceError,
    Value,
    configuration_kernel,
    values_of,
)
from tests import spaces

VALUES = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
)


def one(values: Configuration, names: tuple[str, ...]) -> SearchSpace:
    """A space of one configuration."""
    parameters = tuple(Parameter(name, (value,)) for name, value in zip(names, values, strict=True))
    return SearchSpace("one", parameters, (Entry(values, Outcome.OK, 1.0),))


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), VALUES, min_size=1))
def test_a_configuration_is_read_back_from_its_kernel(settings: dict[str, Value]) -> None:
    space = one(tuple(settings.values()), tuple(settings))
    kernel = configuration_kernel(space, tuple(settings.values()))
    assert kernel.language is Language.CONFIGURATION
    assert tomllib.loads(kernel.source) == settings
    assert values_of(space, kernel) == tuple(settings.values())
    assert kernel.settings == settings


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("block = 128\n", "no 'tile'"),
        ("block = 33\ntile = 2\nlayout = 'row'\npadded = true\n", "no configuration block=33"),
        ("block = 128\ntile = 2\nlayout = 'row'\npadded = false\nmore = 1\n", "no configuration"),
        ("block = 32\ntile = 4\nlayout = 'row'\npadded = true\n", "no configuration"),
        ("block = [128]\ntile = 2\nlayout = 'row'\npadded = false\n", "'block' is neither"),
        ("block = ", "not valid TOML"),
    ],
)
def test_what_is_no_configuration_is_a_sentence(source: str, says: str) -> None:
    with pytest.raises(SpaceError, match=says):
        values_of(spaces.bowl(), Kernel(source, Language.CONFIGURATION))
