"""Whole runs that are killed at a write.

Run as a script, this file kills runs of three parties and a server and prints what the
next run of the same task found: pytest's own process has threads, and should not fork.
"""

import functools
import json
import logging
import os
import re
import shutil
import signal
import sqlite3
import tempfile
from pathlib import Path

import pytest
from forgetting import (
    addition,
    centroid_ids,
    check,
    departure,
    federation,
    found_by,
    predicted,
    q_of,
    removal,
)

from vfl_flower import FederationError, Party
from vfl_flower.clients.mufc.state import ClientState, list_models
from vfl_flower.simulation import simulate
from vfl_flower.strategies import MUFC, MUFCStatus
from vfl_flower.strategies.mufc.state import ServerState


def final(parties, folder, model, version=True):
    """Return all that a task has decided, but times and keys."""
    now = ServerState(folder, model).load()
    actual = [sorted(q_of(now).items()), now.centers.tolist(), now.parties]
    actual += [now.version] if version else []
    for party in parties:
        if party.name in now.parties:
            actual.append(centroid_ids(party, model))
    return actual


# --- kill -9


class Kill:
    """Kills the process at its k-th write."""

    left = 0

    @classmethod
    def count(cls):
        """Count a write."""
        cls.left -= 1
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    @classmethod
    def at(cls, k):
        """Be killed at the k-th one: of SQL, or of a name of a file, before or after.

        Before a file gets its name it was written under another one.
        """
        cls.left = k
        sqlite3.connect = functools.partial(sqlite3.connect, factory=Killed)
        for name in ("replace", "unlink"):
            setattr(os, name, cls.counted(getattr(os, name)))

    @classmethod
    def counted(cls, call):
        """Return a function that counts before and after."""

        def both(*args, **kwargs):
            cls.count()
            call(*args, **kwargs)
            cls.count()

        return both


class Killed(sqlite3.Connection):
    """Counts the statements that may write."""

    reads = re.compile(r"SELECT|BEGIN|DROP|PRAGMA (?!application_id =|user_version =)")

    def _run(self, run, sql, *args):
        result = run(sql, *args)
        if not self.reads.match(sql):
            Kill.count()
        return result

    def execute(self, sql, *args):
        """Run a statement."""
        return self._run(super().execute, sql, *args)

    def executemany(self, sql, *args):
        """Run a statement many times."""
        return self._run(super().executemany, sql, *args)


def killed(act, folder, k):
    """Run in a process that is killed at its k-th write; return whether it was."""
    child = os.fork()
    if not child:
        try:
            Kill.at(k)
            act(folder)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


SETTINGS = {"n_clusters": 3, "local_clusters": 2, "gamma": 0.01, "n_init": 1}
SETTINGS |= {"client_training": "init", "min_rows_per_bin": 1}


def train(folder):
    strategy = MUFC(**SETTINGS, server_state=folder / "server")
    return simulate(strategy, federation(folder), seed=1).model.model


def the_model(folder):
    (model,) = list_models(folder / "server")
    return model


def asked(folder):
    """Return the ids that are to be forgotten: a centroid, another row, one in private.

    As text and in the party's file. They are those of the first training.
    """
    return json.loads((folder / "asked.json").read_text())


def prepare(folder):
    """Train, and choose rows to forget."""
    model = train(folder)
    north, south, _ = federation(folder)
    first = centroid_ids(north, model)[0]
    others = [
        next(i for i in party.ids.tolist() if i not in centroid_ids(party, model))
        for party in (north, south)
    ]
    (folder / "asked.json").write_text(json.dumps([first, *others]))


def unlearn(folder):
    """Forget two rows of one party, and one of another."""
    ids, parties = asked(folder), federation(folder)
    requests = {"north": ids[:2], "south": ids[2:]}
    simulate(
        removal(parties, folder / "server", the_model(folder), requests, seed=1),
        parties,
    )


def forget_client(folder):
    parties = federation(folder)
    simulate(
        departure(parties, folder / "server", the_model(folder), "west", seed=1),
        parties,
    )


def train_on_fewer(folder):
    fewer = [
        Party(p.X[:n], ids=p.ids[:n], name=p.name, state_dir=p.state_dir)
        for p, n in zip(federation(folder), (11, 7, 6), strict=True)
    ]
    simulate(MUFC(**SETTINGS, server_state=folder / "server"), fewer, seed=1)


def add(folder):
    parties = federation(folder)
    simulate(addition(parties, folder / "server", the_model(folder), seed=1), parties)


class Trials:
    """Runs of one task, each killed at another write of a copy of the folder.

    `rows` are those that take part before the task and after it.
    """

    def __init__(self, top, act, prepare=None, left=(), stride=1, rows=(29, 29)):
        self.top, self.act, self.left, self.stride = Path(top), act, left, stride
        self.rows = rows
        (self.top / "start").mkdir()
        if prepare:
            prepare(self.top / "start")
        self.wrong, self.stale, self.ids, self.kills = [], [], [], 0
        if prepare:
            end = shutil.copytree(self.top / "start", self.top / "end")
            act(end)
            # A party that leaves may be told twice, in two versions.
            self.end = final(federation(end), end / "server", the_model(end), not left)

    def all(self):
        """Kill at each write, or at every few, until a run is not killed."""
        while self.one(self.kills * self.stride + 1):
            self.kills += 1

    def one(self, k):
        """Kill at one write, look, run again and look."""
        folder = shutil.copytree(self.top / "start", self.top / "trial")
        try:
            was = killed(self.act, folder, k)
            (self.trained if self.act is train else self.changed)(folder)
        except Exception as error:
            self.wrong.append(f"{k}: {type(error).__name__}: {error}"[:300])
        shutil.rmtree(folder)
        return was

    def changed(self, folder):
        """Nothing is half forgotten, and the next run has the result."""
        model, parties = the_model(folder), federation(folder)
        listed = (folder / "asked.json").exists()
        ids = asked(folder) if listed else []
        for party in parties:
            state = ClientState(party.state_dir, model)
            if party.name not in self.left:
                mine = state.tag([i for i in ids if i.split(".")[0] == party.name])
                assert state.removed() in (set(), set(mine)), "half forgotten"
        rows = int(ServerState(folder / "server", model).load().counts.sum())
        assert rows in self.rows, f"{rows} rows in q"
        self.act(folder)
        check(parties, folder / "server", model, ids, self.left)
        now = final(parties, folder / "server", model, not self.left)
        assert now == self.end, "another result"
        stay = [p for p in parties if p.name not in self.left]
        for party in stay:
            if set(predicted(party, model)) != set(party.ids) - set(ids):
                self.stale.append(party.name)
        self.names(folder, ids)

    def names(self, folder, ids):
        """Look for ids that were forgotten in what parties and server keep."""
        (folder / "asked.json").unlink(missing_ok=True)
        for path in folder.rglob("*"):
            if path.is_file():
                text = path.read_bytes()
                actual = any(re.search(rb"%b\b" % i.encode(), text) for i in ids)
                self.ids += [path.suffix] if actual else []

    def trained(self, folder):
        """Another training completes, and what the first left is whole or refused."""
        parties, server = federation(folder), folder / "server"
        before = list_models(server)
        new = train(folder)
        check(parties, server, new)
        for model in before:
            request = removal(parties, server, model, {"south": ["south.1"]})
            if ServerState(server, model).version:
                simulate(MUFCStatus(model, server_state=server), parties)
                check(parties, server, model)
                simulate(request, parties)
                check(parties, server, model, ["south.1"])
                continue
            with pytest.raises(FederationError, match=r"not finished here|no state"):
                simulate(request, parties)
        (parties[1].state_dir / "forget.txt").unlink(missing_ok=True)
        simulate(removal(parties, server, new, {"south": ["south.2"]}), parties)
        check(parties, server, new, ["south.2"])
        south = parties[1]
        for path in south.state_dir.rglob("*"):
            known = path.stem.removeprefix("predictions-") in before
            if not known and b"south.2" in path.read_bytes():
                self.ids.append(path.suffix)


def main():
    logging.getLogger("vfl_flower").setLevel(logging.CRITICAL)
    # In memory where there is a place: what a kill leaves is the same, and sooner.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    actual = {}
    # Each operation on a file is killed at each of its writes in
    # tests/clients/test_mufc_state.py: here it is the whole of a run that counts.
    for name, task in (
        ("train", (train, None, (), 4)),
        ("unlearn", (unlearn, prepare, (), 2, (29, 26))),
        ("forget-client", (forget_client, train, ["west"], 4, (29, 23))),
        ("add", (add, train_on_fewer, (), 4, (24, 29))),
    ):
        with tempfile.TemporaryDirectory(dir=memory) as top:
            trials = Trials(top, *task)
            trials.all()
            actual[name] = {
                "kills": trials.kills,
                "wrong": trials.wrong,
                "stale": trials.stale,
                "ids": trials.ids,
            }
    print(json.dumps(actual))


@pytest.fixture(scope="module")
def kills():
    return found_by(__file__)


TASKS = ["train", "unlearn", "forget-client", "add"]


@pytest.mark.parametrize("task", TASKS)
def test_killed_at_any_write_the_next_run_completes(kills, task):
    """One version everywhere, the result of a run that nobody killed, no half of it."""
    assert kills[task]["wrong"] == []
    assert kills[task]["kills"] >= 13


@pytest.mark.parametrize("task", TASKS[1:])
def test_killed_at_any_write_the_next_run_writes_the_predictions(kills, task):
    """Of the rows that stay, and of no others."""
    assert kills[task]["stale"] == []


@pytest.mark.parametrize("task", TASKS)
def test_killed_at_any_write_no_forgotten_id_stays_in_a_file(kills, task):
    assert kills[task]["ids"] == []


if __name__ == "__main__":
    main()
