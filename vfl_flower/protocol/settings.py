"""Settings of a strategy: declared once, as typed fields with a docstring each.

A strategy is a dataclass of its settings. From their declaration come its constructor,
the checks of its arguments, the keys of its section of the run config and the help of
the commands; ``docs/tables.py`` prints the section and the table of
the documentation:

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
import functools
import inspect
import linecache
import re
import sys
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic
from annotated_types import Ge, Gt, Lt
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.fields import FieldInfo

from vfl_flower.protocol.normal import plain_number
from vfl_flower.protocol.rules import describe

T = TypeVar("T")

Natural = Annotated[int, Ge(1)]
Count = Annotated[int, Ge(0)]
Seed = Annotated[int, Ge(0), Lt(2**63)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Lt(1)]  # a share from 0 to below 1


class InOutputDir(str):
    """Name of the folder in ``output-dir`` for which an empty run config key stands."""


@dataclass(frozen=True)
class Setting:
    """One setting of a strategy."""

    name: str  # of the constructor's argument
    default: Any  # ``...`` if it has none
    text: str  # what it means
    rule: str  # what it must be: "a number above 0 or 'median'"
    choices: tuple[str, ...]
    """The words that it may be; none if any word will do, or no word."""
    kinds: tuple[type, ...]
    """The types that the run config may give it: of bool, int, float and str."""
    in_run_config: bool | int | float | str | None
    """The default in the run config; None: it has no key there."""
    folder: str = ""
    """Name of the folder in ``output-dir`` that an empty value stands for, if any."""

    @property
    def key(self) -> str:
        """Its name in the run config."""
        return self.name.replace("_", "-")

    @property
    def meaning(self) -> str:
        """Its text, behind its choices where the text does not quote them all."""
        if len(self.choices) < 2 or all(f'"{c}"' in self.text for c in self.choices):
            return self.text
        return f"{', '.join(self.choices)}. {self.text}"


@dataclass_transform(field_specifiers=(pydantic.Field,))
def settings(cls: type[T]) -> type[T]:
    """Make a class the dataclass of its settings, each declared with a docstring.

    The constructor raises ``ValueError`` with one sentence that names the argument, the
    rule and the value, and ``TypeError`` for an argument that it does not have.
    What ``__post_init__`` raises is left as it is.
    """
    config = pydantic.ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    config["arbitrary_types_allowed"] = True
    made: Any = pydantic_dataclass(cls, config=config, eq=False)
    for name, text in _docstrings(cls, sys._getframe(1)).items():
        if name in made.__pydantic_fields__:
            made.__pydantic_fields__[name].description = text
    checked = made.__init__

    @functools.wraps(checked)
    def init(self: Any, *args: Any, **arguments: Any) -> None:
        args = tuple(map(plain_number, args))
        arguments = {name: plain_number(value) for name, value in arguments.items()}
        try:
            checked(self, *args, **arguments)
            return
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
        # Outside of the handler: an error's context has all that was given.
        raise _refusal(type(self), first, args, arguments)

    made.__init__ = init
    made.__doc__ = documented(made.__doc__ or "", settings_of(made))
    return made  # type: ignore[no-any-return]


def _docstrings(cls: type, frame: types.FrameType) -> dict[str, str]:
    """Return the docstring below each field that a class declares, by name.

    Pydantic finds them too, but before Python 3.13 it parses the whole file for each
    class, which takes longer than everything else in the import of this package.
    `frame` is where the class is decorated.
    """
    lines = linecache.getlines(frame.f_code.co_filename, frame.f_globals)
    rest = "".join(lines[frame.f_lineno - 1 :])
    block = re.search(rf"(?ms)^class {cls.__name__}\b.*?(?=^[^\s)#]|\Z)", rest)
    try:
        source = block.group() if block else textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # typed at a prompt
        return {}
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for pair in pairwise(tree.body):
        match pair:
            case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts


def _settings_of(strategy: Any) -> tuple[Setting, ...]:
    """Return the settings of a strategy in the order of its constructor."""
    infos: Mapping[str, FieldInfo] = strategy.__pydantic_fields__
    hints = get_type_hints(strategy, include_extras=True)
    declared = []
    for name, info in sorted(infos.items(), key=lambda item: bool(item[1].kw_only)):
        if info.init is False:
            continue
        default = info.get_default(call_default_factory=True)
        folders = (m for m in info.metadata if isinstance(m, InOutputDir))
        choices, kinds = _kinds(hints[name])
        setting = Setting(
            name,
            default=... if info.is_required() else default,
            text=_text(strategy, name),
            rule=describe(hints[name]),
            choices=choices,
            kinds=kinds,
            in_run_config=default if type(default) in kinds else None,
            folder=next(folders, ""),
        )
        declared.append(setting)
    return tuple(declared)


# Typed, since mypy takes no class for hashable.
settings_of: Callable[[type], tuple[Setting, ...]] = functools.cache(_settings_of)


def _text(strategy: type, name: str) -> str:
    """Return the docstring of a field from the class that declares it."""
    for base in strategy.__mro__:
        info = vars(base).get("__pydantic_fields__", {}).get(name)
        if info is not None and info.description:
            return " ".join(info.description.split())
    return ""


def values_of(strategy: object) -> dict[str, Any]:
    """Return the settings of a strategy by name."""
    names = [setting.name for setting in settings_of(type(strategy))]
    return {name: getattr(strategy, name) for name in names}


def check_unused(strategy: object, names: Sequence[str], where: str) -> None:
    """Raise ValueError where settings `names` were changed that `where` ignores."""
    defaults = {s.name: s.default for s in settings_of(type(strategy))}
    for name in names:
        if (value := getattr(strategy, name)) != defaults[name]:
            shown = repr(value)[:200]
            raise ValueError(f"{name} has no effect with {where}, got {shown}")


def _kinds(hint: Any) -> tuple[tuple[str, ...], tuple[type, ...]]:
    """Return the words of an annotation, and its types that a run config can have."""
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


def _refusal(
    strategy: type, error: Any, args: Sequence[Any], arguments: Mapping[str, Any]
) -> Exception:
    """Return what the constructor raises in the place of pydantic's error."""
    if not error["loc"]:  # raised by __post_init__
        return ValueError(str(error["ctx"]["error"]))
    try:
        given = inspect.signature(strategy).bind(*args, **arguments).arguments
    except TypeError as fault:
        return TypeError(f"{strategy.__name__}: {fault}")
    # The whole value, where pydantic names an item in it.
    place = error["loc"][0]
    name = list(given)[place] if isinstance(place, int) else place
    setting = next(s for s in settings_of(strategy) if s.name == name)
    shown = repr(given[name])[:200]
    return ValueError(f"{name} must be {setting.rule}, got {shown}")


def documented(text: str, declared: Sequence[Setting]) -> str:
    """Return a docstring with settings at the end of its parameters."""
    parameters = []
    for setting in declared:
        default = "" if setting.default is ... else f", default {setting.default!r}"
        parameters += [
            f"{setting.name} : {setting.rule}{default}",
            textwrap.indent(textwrap.fill(setting.text, 80), "    "),
        ]
    text = inspect.cleandoc(text)
    title = "\n\nParameters\n----------\n"
    head, heading, rest = text.partition(title)
    # Before the next section: a line of dashes stands below its title.
    body = rest if heading else head
    section = re.search(r"\n\n\w[^\n]*\n---+\n", f"{body}\n")
    place = section.start() if section else len(body)
    before = head + title + rest[:place] + "\n" if heading else head[:place] + title
    return before + "\n".join(parameters) + body[place:]
