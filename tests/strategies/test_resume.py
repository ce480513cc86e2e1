"""A run whose processes are all killed goes on, to the bits of one that is not."""

import copy
import shutil

import numpy as np
import pytest
from deviating import RealParties
from variants import LIKE, VARIANTS, parties_of

from vfl_flower import MUFC, Party, PartyFailed
from vfl_flower.clients.mufc.state import list_models
from vfl_flower.server.checkpoint import FILE, Checkpoint

PLAIN = ("fkk without cem", "fdskl paper")
"""Only parties in one process take part in them: no run of SuperNodes is so."""

SEEDED = ("gram", "mufc")
"""These run with a seed."""

EARLY = (*SEEDED, "fdskl", "align keyed")
"""These are also killed before their first step, which is the same for all."""


def on_disk(variant, folder):
    """Return the parties of a variant, each with a ``state-dir`` below a folder."""
    parties = []
    for party in parties_of(variant, 3):
        own = copy.copy(party)
        own.state_dir = folder / str(party.name)
        if not own.state_dir.exists():
            own.state_dir.mkdir(mode=0o700)
            for path in party.state_dir.iterdir() if party.state_dir else ():
                shutil.copy(path, own.state_dir)
        parties.append(own)
    return parties


class Disks(RealParties):
    """Parties with folders, of which a copy is taken before each message.

    Not where the run goes on, on the copy of another one: nobody goes on from there.
    """

    def __init__(self, variant, folder, first=1000):
        goes_on = (folder / FILE).exists()
        super().__init__(on_disk(variant, folder))
        self.folder, self.copies, self.goes_on = folder, [], goes_on
        places = range(first, first + len(self._parties))[::-1]
        moved = dict(zip(self._parties, places, strict=True))
        for name in ("_parties", "_contexts"):
            kept = {moved[node]: value for node, value in getattr(self, name).items()}
            setattr(self, name, kept)
        for node, context in self._contexts.items():
            context.node_id = node

    def _push(self, message):
        if not self.goes_on:
            self.snapshot()
        return super()._push(message)

    def snapshot(self):
        """Copy what a kill at this moment would leave."""
        copied = self.folder.with_name(f"{self.folder.name}-{len(self.copies)}")
        shutil.copytree(self.folder, copied)
        self.copies.append(copied)


def started(variant, grid, **changes):
    """Start or continue the run whose checkpoint lies in the folder of a grid."""
    checkpoint = Checkpoint(grid.folder / FILE, {"variant": variant})
    try:
        return VARIANTS[variant].replace(**changes).start(grid, checkpoint=checkpoint)
    finally:
        checkpoint.end()


def left(folder):
    """Return the files that are no records of the run itself, by their names."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".sqlite", ".sqlite-journal", ".pem")
    }


def assert_same(result, other):
    np.testing.assert_equal(result.model.arrays(), other.model.arrays())
    for t, metrics in other.train_metrics_clientapp.items():
        np.testing.assert_equal(dict(result.train_metrics_clientapp[t]), dict(metrics))
    trips = [{a: len(w) for a, w in r.ledger.waits.items()} for r in (result, other)]
    trips[0]["hello"] = trips[1]["hello"]  # once more, to find the parties
    assert trips[0] == trips[1]


@pytest.mark.second
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in PLAIN + LIKE])
def test_killed_anywhere_it_ends_the_same(variant, tmp_path):
    """Between two messages, or after the last one; the SuperNodes get other numbers.

    Server and parties lose all but their disks.
    """
    seed = 3 if variant in SEEDED else None
    changes = {} if variant.endswith("predict") else {"seed": seed}
    (tmp_path / "run").mkdir()
    grid = Disks(variant, tmp_path / "run")
    whole = started(variant, grid, **changes)
    grid.snapshot()
    first = 0 if seed is not None else 3  # then the parties have drawn their secrets
    last = len(grid.copies) - 1
    for k in [first, (first + last) // 2, last][variant not in EARLY :]:
        again = Disks(variant, grid.copies[k], first=2000)
        assert_same(started(variant, again, **changes), whole)
        assert left(again.folder) == left(grid.folder), k


def test_a_run_that_ended_with_a_failure_goes_on_when_that_is_fixed(tmp_path):
    """Rows of b are outside of the box; the checkpoint has the greeting alone."""
    X = np.random.default_rng(0).uniform(-0.5, 0.5, size=(80, 2))
    parties = [
        Party(scale * X[j::4], ids=np.arange(20), name=name, state_dir=tmp_path / name)
        for j, (name, scale) in enumerate(zip("abcd", (1, 9, 1, 1), strict=True))
    ]
    strategy = MUFC(2, n_init=1, seed=3, server_state=tmp_path / "server")
    checkpoint = Checkpoint(tmp_path / FILE)
    with pytest.raises(PartyFailed, match="party 'b' failed in 'mufc_train'"):
        strategy.start(RealParties(parties), checkpoint=checkpoint)
    checkpoint.end()
    assert not any(list_models(tmp_path / name) for name in [*"abcd", "server"])
    checkpoint = Checkpoint(tmp_path / FILE)
    assert checkpoint.held == 1
    checkpoint.end()
