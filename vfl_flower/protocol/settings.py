"""Settings of a strategy: declared once, as typed fields with a docstring each.

A strategy is a dataclass of its settings. Its constructor, its checks, its keys in the
run config, the command help and the documentation all follow from the declaration:

>>> @settings
... class Example:
...     size: Natural = 200
...     '''m, the number of rows.'''
>>> Example(size=0)
Traceback (most recent call last):
ValueError: size must be a whole number of at least 1, got 0
>>> [(setting.key, setting.default, setting.rule) for setting in settings_of(Example)]
[('size', 200, 'a whole number of at least 1')]
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
import types
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass
from itertools import chain, pairwise
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Lt
from pydantic import ValidationError

from vfl_flower.protocol.normal import plain_number
from vfl_flower.protocol.rules import adapter, describe

T = TypeVar("T")

_hints = functools.cache(functools.partial(get_type_hints, include_extras=True))

Natural = Annotated[int, Ge(1)]
Count = Annotated[int, Ge(0)]
Seed = Annotated[int, Ge(0), Lt(2**63)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Lt(1)]  # a share from 0 to below 1


class InOutputDir(str):
    """Name of the folder in ``output-dir`` that an empty run config value selects."""


@dataclass(frozen=True)
class Setting:
    """One setting of a strategy."""

    name: str  # of the constructor's argument
    default: Any  # ``...`` if it has none
    rule: str  # the rule for its value: "a number above 0 or 'median'"
    choices: tuple[str, ...]  # the only words allowed, if any
    kinds: tuple[type, ...]  # its types in a run config: bool, int, float or str
    in_run_config: bool | int | float | str | None
    """The default in the run config; None: the setting has no key there."""
    folder: str  # the folder in ``output-dir`` that an empty value selects, if any
    strategy: type

    @property
    def key(self) -> str:
        """The setting's name in the run config."""
        return self.name.replace("_", "-")

    @property
    def text(self) -> str:
        """The setting's meaning: the docstring below the declaration."""
        texts = (_docstrings(base).get(self.name, "") for base in self.strategy.__mro__)
        return " ".join(next(filter(None, texts), "").split())

    @property
    def meaning(self) -> str:
        """The text, preceded by the choices if the text does not quote all of them."""
        if len(self.choices) < 2 or all(f'"{c}"' in self.text for c in self.choices):
            return self.text
        return f"{', '.join(self.choices)}. {self.text}"


@dataclass_transform(field_specifiers=(dataclasses.field,))
def settings(cls: type[T]) -> type[T]:
    """Turn a class into a dataclass of settings, each declared with a docstring.

    The constructor raises ``ValueError`` with one sentence that names the argument, the
    rule and the value, and ``TypeError`` for an unknown argument.
    Errors of ``__post_init__`` are raised unchanged.
    """
    made: Any = dataclass(eq=False)(cls)
    unchecked = made.__init__

    @functools.wraps(unchecked)
    def init(self: Any, *args: Any, **arguments: Any) -> None:
        try:
            bound = inspect.signature(made).bind(*args, **arguments)
        except TypeError as fault:
            raise TypeError(f"{type(self).__name__}: {fault}") from None
        unchecked(self, **_checked(made, bound.arguments))

    made.__init__ = init
    made.__doc__ = Documented(made.__doc__ or "", made)
    return made  # type: ignore[no-any-return]


def _checked(strategy: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the constructor's arguments, converted to their settings' types."""
    checked = {}
    for name, given in arguments.items():
        hint, value = _hints(strategy)[name], plain_number(given)
        with suppress(ValidationError):
            checked[name] = adapter(hint).validate_python(value)
            continue
        # Outside the handler: pydantic's error contains all values given.
        raise ValueError(f"{name} must be {describe(hint)}, got {repr(value)[:200]}")
    return checked


@functools.cache
def _docstrings(cls: type) -> dict[str, str]:
    """Return the docstring below each field that a class declares, by name."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):  # typed at a prompt
        return {}
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for pair in pairwise(tree.body):
        match pair:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                texts[name] = text
    return texts


@functools.cache
def settings_of(strategy: Any) -> tuple[Setting, ...]:
    """Return the settings of a strategy in the order of its constructor."""
    declared = []
    fields = [f for f in dataclasses.fields(strategy) if f.init]
    for f in sorted(fields, key=lambda f: bool(f.kw_only)):
        hint, default = _hints(strategy)[f.name], cast(Any, f.default)
        if f.default_factory is not MISSING:
            default = f.default_factory()
        folders = (m for m in get_args(hint) if isinstance(m, InOutputDir))
        choices, kinds = _kinds(hint)
        setting = Setting(
            f.name,
            default=... if default is MISSING else default,
            rule=describe(hint),
            choices=choices,
            kinds=kinds,
            in_run_config=default if type(default) in kinds else None,
            folder=next(folders, ""),
            strategy=strategy,
        )
        declared.append(setting)
    return tuple(declared)


def values_of(strategy: Any) -> dict[str, Any]:
    """Return the settings of a strategy by name."""
    return {s.name: getattr(strategy, s.name) for s in settings_of(strategy.__class__)}


def check_unused(strategy: Any, names: Sequence[str], where: str) -> None:
    """Raise ValueError if a changed setting in `names` has no effect with `where`."""
    defaults = {s.name: s.default for s in settings_of(strategy.__class__)}
    for name in names:
        if (value := getattr(strategy, name)) != defaults[name]:
            shown = repr(value)[:200]
            raise ValueError(f"{name} has no effect with {where}, got {shown}")


def _kinds(hint: Any) -> tuple[tuple[str, ...], tuple[type, ...]]:
    """Return an annotation's words, and which of its types a run config supports."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin is Literal:
        words = tuple(a for a in arguments if isinstance(a, str))
        return words, tuple(dict.fromkeys(type(a) for a in arguments))
    if origin in (Union, types.UnionType):
        choices, kinds = zip(*map(_kinds, arguments), strict=True)
        return tuple(chain(*choices)), tuple(dict.fromkeys(chain(*kinds)))
    return (), (hint,) if hint in (bool, int, float, str) else ()


class Documented:
    """A docstring that lists settings as its last parameters, built when it is read."""

    def __init__(self, text: str, strategy: type, without: Iterable[str] = ()) -> None:
        self.text, self.strategy, self.without = text, strategy, {*without}

    def __get__(self, instance: object, owner: type) -> str:
        """Return the complete docstring of the class."""
        parameters = []
        for setting in settings_of(self.strategy):
            if setting.name in self.without:
                continue
            default = "" if setting.default is ... else f", default {setting.default!r}"
            parameters += [
                f"{setting.name} : {setting.rule}{default}",
                textwrap.indent(textwrap.fill(setting.text, 80), "    "),
            ]
        text, title = inspect.cleandoc(self.text), "\n\nParameters\n----------\n"
        # Up to the next section: a line of dashes stands below its title.
        parts = re.match(rf"(?s)(.*?)({title}.*?)?(?=\n\n[^\n]+\n---+\n|\Z)", text)
        assert parts is not None
        head = parts[1] + (f"{parts[2]}\n" if parts[2] else title)
        return head + "\n".join(parameters) + text[parts.end() :]
