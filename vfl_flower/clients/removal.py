"""A party's side of the removal of a model: its part, its state, its predictions.

The server names only the id of the model, and each file is checked first: whatever
the server asks for, a file that is not of that model stays, and so does the journal of
what the party has answered.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TypedDict

from annotated_types import MaxLen

from vfl_flower.clients.mufc.state import ClientState
from vfl_flower.party.parts import load_part
from vfl_flower.party.party import Party, PartyError
from vfl_flower.protocol.steps import step_of, sums_over

log = logging.getLogger("vfl_flower")
step = step_of("removal")

ModelId = Annotated[str, MaxLen(32)]

_HEADERS = (b"id,prediction", b"row,prediction")
"""Beginnings of the first lines of prediction files; scores and classes may follow."""


class Found(TypedDict):
    """Reply of :func:`find`: whether the party stores anything of the model."""

    found: bool


class RemovalReply(TypedDict):
    """Reply of :func:`remove`: whether anything of the model is left."""

    left: bool


@step
@sums_over("none")
def find(party: Party, model: ModelId) -> Found:
    """Say whether the party keeps anything of a model; nothing is changed.

    Every file is checked: if one party would refuse, no other party removes anything.
    """
    return {"found": bool(list(_removals(party, model)))}


@step
@sums_over("none")
def remove(party: Party, model: ModelId) -> RemovalReply:
    """Remove all files of a model at the party; a second call removes nothing."""
    removals = list(_removals(party, model))  # checks all before removing any
    for removal in removals:
        try:
            removal()
        except OSError as error:
            log.error("a file of model %s: %s", model, error)
            raise PartyError(
                f"a file of model {model} cannot be removed: {error.strerror}"
            ) from None
    if removals:
        log.warning("model %s is removed here: %d files", model, len(removals))
    return {"left": any(_removals(party, model))}


def _removals(party: Party, model: str) -> Iterator[Callable[[], None]]:
    """Yield a removal for each file of a model; refuse other files of its name."""
    folder = party.state_dir
    if folder is None:
        return
    part = folder / f"{model}.npz"
    if part.exists() or part.is_symlink():
        load_part(folder, model)
        yield part.unlink
    state = ClientState(folder, model)  # refuses an id that points outside the folder
    if state.exists:
        _ = state.version  # raises for any other file
        yield state.remove
    name = re.compile(rf"predictions-{model}(-[0-9a-f]{{8,32}})?\.csv")
    for path in sorted(folder.glob(f"predictions-{model}*.csv")):
        if name.fullmatch(path.name) and _is_predictions(path):
            yield path.unlink


def _is_predictions(path: Path) -> bool:
    """Return whether a run has written predictions to a file."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return b",".join(file.readline(100).strip().split(b",")[:2]) in _HEADERS
