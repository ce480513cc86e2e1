"""Settings are declared once; an error names the argument, the rule and the value."""

import dataclasses
import math
import re
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from annotated_types import Ge

from vfl_flower.protocol.settings import (
    Fraction,
    InOutputDir,
    Natural,
    Positive,
    check_unused,
    settings,
    settings_of,
)


@settings
class Base:
    """What all have."""

    _: KW_ONLY
    seed: int | None = None
    """Seed of
    all draws."""

    task: ClassVar[str] = "train"


@settings
class Example(Base):
    """An example.

    More of it.

    Raises
    ------
    ValueError
        Often.

    Notes
    -----
    The end.
    """

    size: Natural
    """m, the number of rows."""
    bandwidth: Positive | Literal["median"] = "median"
    """Of the kernel."""
    kernel: Literal["gaussian", "laplacian", "linear"] = "gaussian"
    """Which kernel."""
    share: Fraction = 0.0
    """A share."""
    bits: Literal[16, 32] = 16
    """Bits of an angle."""
    exact: bool = False
    """Whether it is exact."""
    folder: Path | None = None
    """Where it is."""
    columns: list[str] = dataclasses.field(default_factory=list)
    """Names."""
    state: Annotated[str, InOutputDir("state")] = ""
    """Where the state is."""

    def __post_init__(self) -> None:
        """Check what the fields cannot say."""
        if self.size == 13:
            raise ValueError("size must not be 13")


def refusal(*args: Any, **arguments: Any) -> str:
    """Return why arguments are refused."""
    arguments = arguments if args or "size" in arguments else {"size": 5} | arguments
    with pytest.raises(ValueError, match="must") as caught:
        Example(*args, **arguments)
    error = caught.value
    assert type(error) is ValueError
    assert error.__cause__ is error.__context__ is None
    assert "\n" not in str(error)
    return str(error)


# -- errors ----------------------------------------------------------------------------

SIZE = "size must be a whole number of at least 1"
BANDWIDTH = "bandwidth must be a number above 0 or 'median'"
NAMES = "'gaussian', 'laplacian', 'linear'"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"size": 0}, f"{SIZE}, got 0"),
        ({"size": 0.5}, f"{SIZE}, got 0.5"),
        ({"size": True}, f"{SIZE}, got True"),
        ({"bandwidth": -1}, f"{BANDWIDTH}, got -1"),
        ({"bandwidth": "x"}, f"{BANDWIDTH}, got 'x'"),
        ({"bandwidth": math.inf}, f"{BANDWIDTH}, got inf"),
        ({"kernel": "cosine"}, f"kernel must be one of {NAMES}, got 'cosine'"),
        ({"share": 1}, "share must be a number of at least 0 and below 1, got 1"),
        ({"share": np.float64(2)}, "share must be .* below 1, got 2.0"),
        ({"bits": 17}, "bits must be one of 16, 32, got 17"),
        ({"exact": 1}, "exact must be True or False, got 1"),
        ({"folder": 5}, "folder must be a path or None, got 5"),
        ({"columns": "ab"}, "columns must be a list of text, got 'ab'"),
        ({"columns": ["a", 5]}, r"columns must be a list of text, got \['a', 5\]"),
        ({"seed": "1"}, "seed must be a whole number or None, got '1'"),
        ({"size": 13}, "size must not be 13"),
        # Without names, which those of the base have alone.
        ((0,), f"{SIZE}, got 0"),
        ((5, -1), f"{BANDWIDTH}, got -1"),
        ((5, 1, "linear", 0, 16, False, None, ["a", 5]), r"columns .* got \['a', 5\]"),
    ],
    ids=str,
)
def test_an_argument_that_is_refused(arguments, sentence):
    named = isinstance(arguments, dict)
    text = refusal(**arguments) if named else refusal(*arguments)
    assert re.fullmatch(sentence, text)


@pytest.mark.parametrize(
    ("args", "arguments", "sentence"),
    [
        ((), {"size": 1, "weather": 5}, "got an unexpected keyword arg.* 'weather'"),
        ((), {}, "missing a required argument: 'size'"),
        ((), {"seed": 1}, "missing a required argument: 'size'"),
        ((1,), {"size": 1}, "multiple values for argument 'size'"),
        ((1, 1, "linear", 0, 16, True, None, [], "", {}), {}, "too many positional .*"),
    ],
)
def test_arguments_that_there_are_not(args, arguments, sentence):
    with pytest.raises(TypeError, match=f"^Example: {sentence}$"):
        Example(*args, **arguments)


def test_a_long_value_is_cut():
    assert len(refusal(kernel="x" * 10_000)) < 400


def test_numbers_of_numpy_are_numbers():
    example = Example(np.int64(3), share=np.float32(0.5), exact=np.bool_(True))
    assert (example.size, example.share, example.exact) == (3, 0.5, True)
    assert [type(v) for v in (example.size, example.share)] == [int, float]


# -- what is read from a declaration ---------------------------------------------------

KERNELS = ("gaussian", "laplacian", "linear")


@pytest.mark.parametrize(
    ("name", "default", "kinds", "choices", "in_run_config", "text"),
    [
        ("seed", None, (int,), (), None, "Seed of all draws."),
        ("size", ..., (int,), (), None, "m, the number of rows."),
        ("bandwidth", "median", (float, str), ("median",), "median", "Of the kernel."),
        ("kernel", "gaussian", (str,), KERNELS, "gaussian", "Which kernel."),
        ("bits", 16, (int,), (), 16, "Bits of an angle."),
        ("exact", False, (bool,), (), False, "Whether it is exact."),
        ("folder", None, (), (), None, "Where it is."),
        ("state", "", (str,), (), "", "Where the state is."),
    ],
)
def test_what_a_setting_is(name, default, kinds, choices, in_run_config, text):
    (actual,) = [s for s in settings_of(Example) if s.name == name]
    assert (actual.default, actual.kinds) == (default, kinds)
    assert (actual.choices, actual.in_run_config) == (choices, in_run_config)
    assert (actual.text, actual.folder) == (text, "state" if name == "state" else "")


def test_parameters_stand_before_the_next_section_of_a_docstring():
    head, _, rest = Example.__doc__.partition("Parameters\n----------\n")
    assert head.strip() == "An example.\n\nMore of it."
    parameters, _, rest = rest.partition("\n\nRaises\n------\n")
    assert rest.endswith("Notes\n-----\nThe end.")
    first, second, *more = parameters.splitlines()
    assert first == "size : a whole number of at least 1"
    assert second == "    m, the number of rows."
    assert len(more) + 2 == 2 * len(settings_of(Example))
    assert Base.__doc__.startswith("What all have.\n\nParameters\n----------\nseed :")


# -- settings without an effect --------------------------------------------------------


def test_a_setting_without_an_effect_must_not_be_changed():
    check_unused(Example(5, kernel="gaussian"), ["kernel", "share", "columns"], "it")
    changed = Example(5, kernel="linear", columns=["a"])
    check_unused(changed, ["share"], "solver 'x'")
    for name, shown in (("kernel", "'linear'"), ("columns", r"\['a'\]")):
        rule = rf"^{name} has no effect with solver 'x', got {shown}$"
        with pytest.raises(ValueError, match=rule):
            check_unused(changed, ["share", name], "solver 'x'")
    with pytest.raises(AttributeError, match="degree"):  # a mistake of the strategy
        check_unused(changed, ["degree"], "solver 'x'")


def test_docstrings_are_found_wherever_a_class_stands():
    @settings
    class Inner:
        """A class in a function."""

        size: Annotated[int, Ge(3)] = 3
        """How many
        there are."""

    class Later(Inner):
        """A class that is decorated later."""

        share: float = 0.5
        """Which part."""

    texts = [(setting.name, setting.text) for setting in settings_of(settings(Later))]
    assert texts == [("size", "How many there are."), ("share", "Which part.")]
    with pytest.raises(ValueError, match=r"^size must be .* at least 3, got 2$"):
        Later(size=2)
