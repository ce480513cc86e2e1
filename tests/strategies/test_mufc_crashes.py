"""Whole runs that are killed at a write.

Run as a script, this file kills runs of two parties and a server, of three where one
leaves, and prints what the next run of the same task found. Each operation on a file is
killed at each of its writes in tests/clients/test_mufc_state.py.
"""

import itertools
import json
import logging
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from forgetting import (
    addition,
    centroid_ids,
    check,
    departure,
    federation,
    first_rows,
    predicted,
    q_of,
    removal,
)
from kills import MEMORY, killed, printed_by

from vfl_flower import FederationError
from vfl_flower.clients.mufc.state import ClientState, list_models
from vfl_flower.simulation import simulate
from vfl_flower.strategies import MUFC
from vfl_flower.strategies.mufc.state import ServerState

pytestmark = pytest.mark.second

SETTINGS = {"n_clusters": 3, "local_clusters": 2, "gamma": 0.01, "n_init": 1}
SETTINGS |= {"client_training": "init", "min_rows_per_bin": 1}


# -- tasks -----------------------------------------------------------------------------


def members(folder):
    """Return two parties, and the third where it has a state."""
    return federation(folder, (14, 9, 6)[: 2 + (folder / "west").exists()])


def train(folder, parties=None):
    strategy = MUFC(**SETTINGS, server_state=folder / "server")
    return simulate(strategy, parties or members(folder), seed=1).model.id


def the_model(folder):
    (model,) = list_models(folder / "server")
    return model


def asked(folder):
    """Return the ids to be forgotten: a centroid, and a row of each of two parties."""
    path = folder / "asked.json"
    return json.loads(path.read_text()) if path.exists() else []


def train_and_choose(folder):
    """Train, and choose rows to forget."""
    model = train(folder)
    parties = members(folder)
    chosen = centroid_ids(parties[0], model)[:1]
    for party in parties:
        drawn = centroid_ids(party, model)
        chosen.append(next(i for i in party.ids.tolist() if i not in drawn))
    (folder / "asked.json").write_text(json.dumps(chosen))


def train_on_fewer(folder):
    train(folder, first_rows(members(folder), (11, 7)))


def run(folder, task, *arguments):
    parties, model = members(folder), the_model(folder)
    simulate(task(parties, folder / "server", model, *arguments, seed=1), parties)


# -- what is found after a kill --------------------------------------------------------


class Trials:
    """Runs of one task, each killed at another write of a copy of the folder.

    `rows` are those that take part before the task and after it.
    """

    def __init__(self, top, act, prepare=None, left=(), stride=1, rows=(23, 23)):
        self.act, self.left, self.rows = act, left, rows
        self.wrong, self.stale, self.ids = [], [], []
        start, trial = top / "start", top / "trial"
        start.mkdir()
        if prepare:
            prepare(start)
            act(end := shutil.copytree(start, top / "end"))
            self.end = self.final(end)
        look = self.changed if prepare else self.trained
        for k in itertools.count(1, stride):
            was_killed = killed(act, shutil.copytree(start, trial), k)
            try:
                look(trial)
            except Exception as error:
                self.wrong.append(f"{k}: {type(error).__name__}: {error}"[:300])
            shutil.rmtree(trial)
            if not was_killed:
                self.kills = k // stride
                return

    def final(self, folder):
        """Return all that a task has decided, but times and keys."""
        model = the_model(folder)
        now = ServerState(folder / "server", model).load()
        # A party that leaves may be told twice, in two versions.
        version = None if self.left else now.version
        stay = [p for p in members(folder) if p.name in now.parties]
        drawn = [centroid_ids(party, model) for party in stay]
        q = sorted(q_of(now).items())
        return q, now.centers.tolist(), now.parties, version, drawn

    def changed(self, folder):
        """Nothing is half forgotten, and the next run has the result."""
        model, parties, ids = the_model(folder), members(folder), asked(folder)
        stay = [party for party in parties if party.name not in self.left]
        for party in stay:
            state = ClientState(party.state_dir, model)
            mine = state.tag([i for i in ids if i.split(".")[0] == party.name])
            assert state.removed() in (set(), set(mine)), "half forgotten"
        rows = int(ServerState(folder / "server", model).load().counts.sum())
        assert rows in self.rows, f"{rows} rows in q"
        self.act(folder)
        check(parties, folder / "server", model, ids, self.left)
        assert self.final(folder) == self.end, "another result"
        for party in stay:
            if set(predicted(party, model)) != set(party.ids) - set(ids):
                self.stale.append(party.name)
        self.names(folder, ids)

    def names(self, folder, ids):
        """Look for ids that were forgotten in what parties and server keep."""
        (folder / "asked.json").unlink(missing_ok=True)
        for path in folder.rglob("*"):
            text = path.read_bytes() if path.is_file() else b""
            if any(re.search(rb"%b\b" % i.encode(), text) for i in ids):
                self.ids.append(path.suffix)

    def trained(self, folder):
        """Another training completes, and what the first left is whole or refused."""
        parties, server = members(folder), folder / "server"
        before = list_models(server)
        new = train(folder)
        check(parties, server, new)
        for model in before:
            request = removal(parties, server, model, {"south": ["south.1"]})
            if ServerState(server, model).version:
                simulate(request, parties)
                check(parties, server, model, ["south.1"])
                continue
            with pytest.raises(FederationError, match=r"not finished at this|no state"):
                simulate(request, parties)
        (parties[1].state_dir / "forget.txt").unlink(missing_ok=True)
        simulate(removal(parties, server, new, {"south": ["south.2"]}), parties)
        check(parties, server, new, ["south.2"])
        for path in parties[1].state_dir.rglob("*"):
            known = path.stem.removeprefix("predictions-") in before
            if not known and b"south.2" in path.read_bytes():
                self.ids.append(path.suffix)


def main():
    logging.getLogger("vfl_flower").setLevel(logging.CRITICAL)
    results = {}
    tasks = {
        "train": (train, None, (), 6),
        "unlearn": (
            lambda folder: run(folder, removal, asked(folder)),
            *(train_and_choose, (), 6, (23, 20)),
        ),
        "forget-client": (
            lambda folder: run(folder, departure, "west"),
            lambda folder: train(folder, federation(folder)),  # of three
            *(["west"], 7, (29, 23)),
        ),
        "add": (lambda folder: run(folder, addition), train_on_fewer, (), 6, (18, 23)),
    }
    for name, task in tasks.items():
        with tempfile.TemporaryDirectory(dir=MEMORY) as top:
            trials = Trials(Path(top), *task)
            counts = "kills", "wrong", "stale", "ids"
            results[name] = {key: getattr(trials, key) for key in counts}
    print(json.dumps(results))


@pytest.fixture(scope="module")
def kills():
    return printed_by(__file__)


@pytest.mark.parametrize("task", ["train", "unlearn", "forget-client", "add"])
def test_killed_at_any_write_the_next_run_completes(kills, task):
    """One version everywhere, the result of a run that nobody killed, no half of it.

    It writes the predictions of the rows that stay, and of no others, and no forgotten
    id stays in a file.
    """
    assert kills[task]["wrong"] == []
    assert kills[task]["stale"] == []
    assert kills[task]["ids"] == []
    assert kills[task]["kills"] >= 13


if __name__ == "__main__":
    main()
