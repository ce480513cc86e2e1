"""A party's side of removing a model: the local model, the state and predictions.

The server sends only the model's id, and each file is checked before it is removed.
Whatever the server requests, files that do not belong to the model are not removed, and
neither is the journal of the party's answers.
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
"""Start of the first line of a prediction file; scores and classes can follow."""


class Found(TypedDict):
    """Reply of :func:`find`: whether the party stores any file of the model."""

    found: bool


class RemovalReply(TypedDict):
    """Reply of :func:`remove`: whether any file of the model remains."""

    left: bool


@step
@sums_over("none")
def find(party: Party, model: ModelId) -> Found:
    """Report whether the party stores any file of a model; change nothing.

    Every file is checked here, so that no party removes a file if any party would
    refuse.
    """
    return {"found": bool(list(_removals(party, model)))}


@step
@sums_over("none")
def remove(party: Party, model: ModelId) -> RemovalReply:
    """Remove all files of a model at the party; a second call has no effect."""
    removals = list(_removals(party, model))  # checks all before removing any
    for removal in removals:
        try:
            removal()
        except OSError as error:
            log.error("cannot remove a file of model %s: %s", model, error)
            raise PartyError(
                f"a file of model {model} cannot be removed: {error.strerror}"
            ) from None
    if removals:
        log.warning("model %s was removed here: %d files", model, len(removals))
    return {"left": any(_removals(party, model))}


def _removals(party: Party, model: str) -> Iterator[Callable[[], None]]:
    """Yield, for each file of a model, a function to remove it; refuse other files."""
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
    """Return whether a file contains predictions that a run has written."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return b",".join(file.readline(100).strip().split(b",")[:2]) in _HEADERS
