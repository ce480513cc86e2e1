"""Steps: functions that parties run on request, each declared once.

A step is a plain function of a party. Its annotations are its contract
(:mod:`vfl_flower.protocol.contract`). Its action consists of the name of an algorithm,
which its module declares, and the name of the function. A strategy uses the function to
request the step. For example:

>>> from typing import Annotated, TypedDict
>>> from vfl_flower.party.party import Party
>>> from vfl_flower.protocol.contract import IN_SUM, Reals
>>> from vfl_flower.typing import Array
>>> class Total(TypedDict):
...     total: Annotated[Array, Reals("1"), IN_SUM]
>>> step = step_of("example")
>>> @step
... def column_total(party: Party, column: int) -> Total:
...     return {"total": party.X[:, column].sum(keepdims=True)}

``parties.ask(column_total.summing(total=100.0), column=2)`` asks all parties. In such a
call, mypy reports unknown parameters and parameters of the wrong type.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast

from vfl_flower.protocol.contract import Contract
from vfl_flower.protocol.seals import Sealed
from vfl_flower.protocol.terms import Kind
from vfl_flower.shapes import shapes_only
from vfl_flower.typing import Array

P = ParamSpec("P")
R = TypeVar("R", bound=Mapping[str, Any])
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Function = Callable[Concatenate[Any, P], R]  # of a party


@dataclass(frozen=True)
class Sum:
    """A sum over the parties, requested by the server."""

    bound: float = 1.0
    """A bound on the absolute values of a party's entries, rounded up to a power of
    two. It sets the resolution of the fixed-point numbers, and has no effect in the
    groups of the circle."""
    group: str = ""
    """The group in which to add; by default the group of the run."""
    to: int | None = None
    """The only party that may open the sum; None: the server."""

    def __post_init__(self) -> None:
        """Round the bound up to a power of two, as parties require."""
        if 0 < self.bound < math.inf:
            fraction, exponent = math.frexp(self.bound)
            power = exponent - 1 if fraction == 0.5 else exponent
            object.__setattr__(self, "bound", math.ldexp(1.0, power))


@shapes_only
@dataclass(frozen=True)
class Each:
    """A value for each party; None for a party that gets no value."""

    values: tuple[Any, ...]


def each(values: Sequence[T | None]) -> T:
    """Give each party a separate value for one parameter of a step.

    There is one value per party, in party order; None leaves the parameter out. For the
    type checker, the result has the type of the parameter.
    """
    return cast(T, Each(tuple(values)))


def each_of(parties: Sized, values: Mapping[int, T]) -> T:
    """Give only the parties at these places a value for one parameter."""
    return each([values.get(j) for j in range(len(parties))])


def opened(sealed: Sealed) -> Array:
    """Give a party a value that only it can open; its step gets the opened array."""
    return cast(Array, sealed)


class Question(Generic[P, R]):
    """A step and the requested sums, one for each array that it sends under masks."""

    def __init__(self, step: Step[P, R], sums: Mapping[str, Sum]) -> None:
        self.step, self.sums = step, sums


class Step(Question[P, R]):
    """A function that a party runs when the server requests it; see :func:`step_of`.

    Messages refer to it as `action`, and the local models that it stores or reads
    belong to `algorithm`. The decorators below set `reveals`, `once`, `rows` and `why`.
    """

    def __init__(
        self, function: Function[P, R], action: str, algorithm: str = ""
    ) -> None:
        self.function, self.action, self.algorithm = function, action, algorithm
        self.reveals: tuple[Reveals, ...] = getattr(function, "reveals", ())
        self.once: bool = getattr(function, "once", False)
        rows: tuple[SumRows, str] = getattr(function, "sums_over", ("session", ""))
        self.rows, self.why = rows
        functools.update_wrapper(self, function)
        super().__init__(self, {})

    def __call__(self, party: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the step on a party, as a plain function."""
        return self.function(party, *args, **kwargs)

    def __repr__(self) -> str:
        """Return the action."""
        return f"<step {self.action}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the module and action only: Ray sends a ClientApp to its actors."""
        return _step_of, (self.function.__module__, self.action)

    def summing(self, **sums: float | Sum) -> Question[P, R]:
        """Request the step together with these sums over its replies.

        Each argument has the name of a value in the reply. It is a :class:`Sum`, or
        only the bound on the absolute values of a party's entries.
        """
        wanted = {n: s if isinstance(s, Sum) else Sum(s) for n, s in sums.items()}
        return Question(self, wanted)

    @functools.cached_property
    def contract(self) -> Contract:
        """The contract that the step's annotations declare."""
        return Contract.of(self.function)


def _step_of(module: str, action: str) -> Step[..., Any]:
    """Return the step of a module that has this action."""
    declared = vars(importlib.import_module(module)).values()
    return next(s for s in declared if isinstance(s, Step) and s.action == action)


@dataclass(frozen=True)
class Reveals:
    """A kind of value that a step reveals, beyond sums and declared numbers."""

    kind: Kind
    """One of the kinds that a party's consent names."""
    when: str = ""
    """A parameter of the step, or a field of a parameter. The step reveals the kind
    only if this value is present and is neither False nor 0. With the prefix "not ",
    the step reveals the kind in all other cases. "": the step always reveals it."""
    times: str = ""
    """A parameter of the step that states how often the kind leaves. "": once."""
    optional: bool = False
    """Whether the step, once the limit is reached, continues without this kind, as if
    the parameter `when` were false."""
    counted: bool = True
    """Whether this step counts the kind against limits; if not, another step does."""

    def __call__(self, function: F) -> F:
        """Add this kind to the kinds that a function reveals; use below ``@step``."""
        vars(function)["reveals"] = (self, *getattr(function, "reveals", ()))
        return function

    def applies(self, values: Mapping[str, Any]) -> bool:
        """Return whether a request with these values reveals this kind."""
        if not self.when:
            return True
        name, *fields = self.when.removeprefix("not ").split(".")
        value = functools.reduce(getattr, fields, values.get(name))
        present = bool(value) if isinstance(value, int) else value is not None
        return present != self.when.startswith("not ")


reveals = Reveals
"""The decorator by which a step declares a kind that it reveals."""

SumRows = Literal["session", "request", "earlier", "party", "none"]
"""The origin of the rows that a step adds up; see :func:`sums_over`."""


def sums_over(rows: SumRows, why: str = "") -> Callable[[F], F]:
    """Declare the rows that a step adds up; use this below ``@step``.

    rows: ``"session"``, the default: all rows of the session, which the party's guard
        checks before the step. ``"request"``: rows that the request determines, by row
        numbers, a seed or a share; the step calls
        :meth:`~vfl_flower.party.party.Party.sum_over`. ``"earlier"``: rows that an
        earlier step of the session has checked in this way. ``"party"``: groups that
        the party forms by a rule of the step. ``"none"``: the step adds up no rows.
    why: the reason why single rows stay hidden without the guard.
    """

    def declare(function: F) -> F:
        vars(function)["sums_over"] = rows, why
        return function

    return declare


def once(function: F) -> F:
    """Declare that a party answers a step once per session; use below ``@step``."""
    vars(function)["once"] = True
    return function


Steps = tuple[Step[..., Any], ...]

STEPS: dict[str, Step[..., Any]] = {}
"""All declared steps, by action."""


def step_of(algorithm: str) -> Callable[[Function[P, R]], Step[P, R]]:
    """Return the decorator that declares plain functions as steps of an algorithm.

    A step takes a party and the parameters of the request, and returns a typed dict;
    :mod:`vfl_flower.protocol.contract` explains how to annotate them. The action is
    ``<algorithm>_<function>``, regardless of the module. The decorator raises
    ValueError if another step has that action.
    """

    def declare(function: Function[P, R]) -> Step[P, R]:
        action = f"{algorithm}_{function.__name__}"
        if action in STEPS:
            raise ValueError(f"action {action!r} already has a step")
        STEPS[action] = declared = Step(function, action, algorithm)
        return declared

    return declare
