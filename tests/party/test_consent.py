"""What a party lets leave it, and what it counts of it over its runs."""

import functools
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from consents import letting, limited, pool
from deviating import RealParties
from draws import repeated_draws
from federations import by_columns
from transcripts import our_steps

from vfl_flower import CoresetVRLR, FederationError, Party, PartyFailed
from vfl_flower.clients.coresets import sampling as coresets
from vfl_flower.party.consent import ALLOW_ALL, MOST_BYTES, Consent, Limit
from vfl_flower.party.journal import FILE
from vfl_flower.party.party import PartyError
from vfl_flower.protocol.steps import STEPS, Reveals
from vfl_flower.protocol.terms import Terms
from vfl_flower.secure_aggregation.keys import encode_key
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties

N = 60
KEY = encode_key(bytes(range(32)))


def made(tmp_path, consents=(ALLOW_ALL,) * 3, ids=True, n=N):
    X = np.random.default_rng(0).uniform(-0.4, 0.4, size=(n, 6))
    given = {"folder": tmp_path, "ids": np.arange(n) if ids else None}
    parties = by_columns(X, 1.0 * (X[:, 4] > 0), names=list("abc"), **given)
    for party, consent in zip(parties, consents, strict=True):
        party.consent = consent
    return parties


# -- the file --------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    (path := tmp_path / "consent.toml").touch(mode=0o600)
    return path


def test_a_file_is_read(path):
    path.write_text(
        'strategies = ["fdskl"]\nmin-parties = 4\nallow-seed = true\n'
        "max-round-trips = 50\n"
        "[leaves]\nrows = {run = 10, life = 100}\nangles = true\ntotals = false\n"
        f'[peers]\nrome = "{KEY}"\n'
    )
    assert Consent.load(path) == Consent(
        strategies=["fdskl"],
        min_parties=4,
        allow_seed=True,
        max_round_trips=50,
        leaves={"rows": Limit(10, 100), "angles": Limit()},
        peers={"rome": KEY},
    )


def test_an_empty_file_lets_sums_leave():
    """The key of an earlier version was for runs that continue without a party."""
    assert Consent.parse({}) == Consent.parse({"parties-may-leave": False}) == Consent()
    assert not Consent().leaves
    assert Consent().least_parties == 3


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("parties-may-leave = true", "'parties-may-leave' must be false or left out"),
        ("parties-may-leave = 0", "'parties-may-leave' must be false or left out"),
        ("rows = 5", "'rows' is not allowed here"),
        ("min-parties = 2", "'min-parties' must be a whole number of at least 3"),
        ('two-parties = "yes"', "'two-parties' must be True or False"),
        ("two-parties = true\nmin-parties = 5", "'two-parties' must be false if"),
        ("[leaves]\nlabels = true", r"may have only the keys rows, .*, got 'labels'"),
        ("[leaves]\nrows = 5", "rows must be true, false or a table"),
        ("[leaves]\nrows = {runs = 5}", "rows: 'runs' is not allowed here"),
        ("[leaves]\nrows = {run = -5}", "rows: 'run' must be a whole number"),
        ("[leaves]\ntotals = { rows = 5 }", "totals must not have 'rows'"),
        ("[leaves]\nmoments = { rows = 0 }", "moments: "),
        ("leaves = 3", "'leaves' must be a table"),
        ("[peers]\nrome = 3", "'peers' must be a table of names and keys"),
        ('[peers]\nrome = "me"', "public key must be 'ed25519:' followed by 43 "),
        ("leaves", "consent file must be TOML"),
    ],
)
def test_a_file_with_a_fault(path, text, rule):
    path.write_text(text)
    with pytest.raises(PartyError, match=rule):
        Consent.load(path)


def test_a_file_that_is_too_large(path):
    """A rule at its end must not be lost."""
    first, last = "allow-seed = true\n", "\nmin-parties = 4\n"
    path.write_text(f"{first:#<{MOST_BYTES - len(last)}}{last}")
    assert Consent.load(path) == Consent(allow_seed=True, min_parties=4)
    path.write_text(f"{first:#<{MOST_BYTES}}{last}")
    with pytest.raises(PartyError, match=f"file must have at most {MOST_BYTES} bytes"):
        Consent.load(path)


def test_a_file_that_others_can_write_or_own(path, monkeypatch):
    path.chmod(0o622)
    with pytest.raises(PartyError, match="no other user may have write"):
        Consent.load(path)
    path.chmod(0o644)
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 1234)
    else:
        os.chown(path, 1234, -1)
    with pytest.raises(PartyError, match="must belong to the user who runs"):
        Consent.load(path)
    with pytest.raises(PartyError, match="consent file cannot be read: No such"):
        Consent.load(path.with_name("none.toml"))


# -- what a run needs ------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [CoresetVRLR(12, dealer="b", computes="a"), CoresetVRLR(12, solver="central")],
    ids=["products", "rows"],
)
def test_a_consent_reads_the_terms_that_a_strategy_declares(
    tmp_path, monkeypatch, strategy
):
    seen = []
    monkeypatch.setattr(Consent, "lacks", lambda self, terms: seen.append(terms) or [])
    strategy.replace(seed=1).greet(Exchange(RealParties(made(tmp_path))))
    terms = strategy.terms
    needs, wants = list(terms.needs), list(terms.wants)
    given = replace(terms, needs=needs, wants=wants, seeded=True, parties=3)
    assert seen == [given] * 3


def test_the_setting_that_needs_less_is_named(tmp_path):
    parties = made(tmp_path, [letting()] * 3)
    with pytest.raises(
        FederationError,
        match=r"3 of 3 .* 'a' .* 'b' .* 'c' .* solver='gram', the run requests no "
        "rows, but instead row-sums, totals, coefficients, moments",
    ):
        CoresetVRLR(10, solver="central").start(RealParties(parties))


def test_a_server_that_says_less_is_refused_before_a_step(tmp_path, monkeypatch):
    computed = []

    @functools.wraps(coresets.pooled_rows.function)  # the contract of the step
    def compute(*_, **__):
        computed.append(1)

    monkeypatch.setattr(coresets.pooled_rows, "function", compute)
    parties = Parties(Exchange(RealParties(made(tmp_path, [letting("totals")] * 3))))
    with pytest.raises(PartyFailed, match="consent does not allow rows") as caught:
        pool(parties, range(3))
    assert "'rows = true' or a limit to [leaves]" in caught.value.reason
    assert not computed


@pytest.mark.parametrize(
    ("rules", "refused"),
    [
        ({"strategies": ["mufc"]}, "of strategy and task that uses coresets_"),
        ({"tasks": ["predict"]}, "of strategy and task that uses coresets_"),
        ({"min_parties": 4}, "would need min-parties = 3"),
        ({"allow_seed": False}, "would need allow-seed = true"),
        ({"max_round_trips": 1}, "at most 1 messages in a run, but with this message"),
        ({"max_bytes": 100}, "at most 100 bytes in a run, but with this message"),
    ],
)
def test_rules_of_a_run(tmp_path, rules, refused):
    consent = letting("rows", "totals", **{"allow_seed": True} | rules)
    grid = RealParties(made(tmp_path, [ALLOW_ALL, consent, ALLOW_ALL]))
    with pytest.raises((FederationError, PartyFailed), match=refused):
        CoresetVRLR(10, solver="central", seed=1).start(grid)


def test_two_parties_need_a_line(tmp_path):
    strategy = CoresetVRLR(120)
    parties = made(tmp_path)[1:]
    for two in (False, True):
        for party in parties:
            party.consent = letting(*strategy.terms.needs, two_parties=two)
        grid = RealParties(parties)
        if two:
            with repeated_draws(1):
                assert strategy.start(grid).metrics["weight_sum"] > 0
        else:
            with pytest.raises(FederationError, match="would need two-parties = true"):
                strategy.start(grid)


def test_a_party_of_a_loader_without_consent_is_strict(tmp_path):
    grid = RealParties(made(tmp_path))
    for party in grid._parties.values():
        party.consent = None
    with pytest.raises(FederationError, match=r"3 of 3 parties refuse .* rows = true"):
        CoresetVRLR(10, solver="central").start(grid)


@pytest.mark.parametrize(
    ("when", "value", "applies"),
    [
        *(("", None, True), ("not pool", None, True), ("not pool", 3, False)),
        *(("pool", True, True), ("pool", np.zeros(3), True)),
        *(("pool", value, False) for value in (False, 0, None)),
    ],
)
def test_when_a_step_reveals(when, value, applies):
    assert Reveals("rows", when).applies({"pool": value}) == applies


UNDECLARED = {
    # Rows whose labels a party knows, drawn uniformly.
    ("fdskl_start", "rows"),
    # Only in a run in one process.
    ("kernel_kmeans_expand", "rows"),
    # Points under the keys of all parties, shuffled: they tell sizes of intersections.
    ("alignment_encrypt_points", "encrypted"),
    # Hashes under a key that the party has put into its state-dir for this.
    ("alignment_hash_with_key", "hashes"),
}


def test_arrays_leave_in_the_clear_only_by_declaration():
    """A step that one adds declares what it reveals, or is in the list above."""
    for step in our_steps().values():
        for name, field in step.contract.reply.items():
            if field.kind in (np.ndarray, dict) and field.leaves is None:
                assert step.reveals or (step.action, name) in UNDECLARED, step


def test_conditions_are_parameters():
    for step in STEPS.values():
        for revealed in step.reveals:
            name = revealed.when.removeprefix("not ").partition(".")[0]
            assert not name or name in step.contract.request


# -- limits ----------------------------------------------------------------------------


def run_of(tmp_path, rows, run=10, life=30, **changes):
    grid = RealParties(made(tmp_path, [limited(run, life)] * 3, **changes))
    pool(Parties(Exchange(grid), seed=0), rows)


def test_a_limit_for_life_holds_over_twenty_runs(tmp_path):
    """Ten runs with a limit of 100 a run released 406 to 494 of 569 rows."""
    rng = np.random.default_rng(0)
    seen: set[int] = set()
    refused = 0
    for _ in range(20):
        rows = rng.choice(N, size=10, replace=False)
        wanted = seen | set(rows.tolist())
        if len(wanted) > 30:
            with pytest.raises(PartyFailed, match=r"at most 30 rows to .* as row"):
                run_of(tmp_path, rows)
            refused += 1
        else:
            run_of(tmp_path, rows)
            seen = wanted
    assert len(seen) <= 30
    assert refused > 10
    run_of(tmp_path, sorted(seen)[:10])  # what has left may leave again


def test_a_limit_for_life_needs_ids_and_a_folder(tmp_path):
    """Values can change with the file: standardised ones do with each row."""
    with pytest.raises(PartyFailed, match=r"needs ids .* this party's rows"):
        run_of(tmp_path, range(5), ids=False)
    party = Party(np.ones((3, 1)), consent=limited(None, 2))
    with pytest.raises(PartyError, match="state-dir must be set"):
        party.share(np.arange(2), "rows")


def test_rows_are_known_in_another_order(tmp_path):
    """A file that was sorted again has the same ids, and so the same limits."""
    for start in (0, 10, 20):
        run_of(tmp_path, range(start, start + 10))
    parties = made(tmp_path, [limited(None, 30)] * 3)
    for party in parties:
        party.X, party.ids = party.X[::-1], party.ids[::-1]
        party.y = None
    asked = Parties(Exchange(RealParties(parties)), seed=0)
    pool(asked, range(N - 10, N))  # rows 9 to 0
    with pytest.raises(PartyFailed, match="its data; with this run, the total is 31"):
        pool(asked, [0])


def test_two_runs_at_once_share_a_limit(tmp_path):
    grids = [RealParties(made(tmp_path, [limited(20, 30)] * 3)) for _ in range(2)]
    first, second = (Parties(Exchange(grid), seed=0) for grid in grids)
    pool(first, range(20))
    pool(second, range(20, 30))
    with pytest.raises(PartyFailed, match="its data; with this run, the total is 31"):
        pool(second, [30])


SENDING = """
import contextlib, os, pathlib, signal, sys, tempfile, time
import numpy as np
from flwr.app import RecordDict
from vfl_flower import Party
from vfl_flower.party.memory import Memory
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.protocol.errors import PartyError
from vfl_flower.protocol.frame import Frame
from vfl_flower.party.journal import journal_of
consent = Consent(leaves={"rows": Limit(None, 300)}, peers=None)

def send(folder, first, row, count=1000):
    party = Party(np.arange(2000.0)[:, None], ids=np.arange(2000), consent=consent)
    for number in range(first, first + count):
        frame = Frame(session=1, seed=0, private_draws=False, masking="ring", round=1,
                      previous=0, parties=3, index=0)
        party.shared, party.releases = {}, None
        try:
            with journal_of(folder, number) as line:
                line.greet(1 + number, Memory(RecordDict()))
                line.enter(party)
                party.share(np.arange(row, row + 1), "rows")
                line.leave(frame, party, b"reply", 5)
        except PartyError:
            continue
        print(row, flush=True)
        row += 1

with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
    send(pathlib.Path(folder), 0, 0, 1)  # imports what is imported late
for attempt in range(10):
    lines, seconds = int(sys.argv[2 + attempt]), float(sys.argv[12 + attempt])
    pids, (read, write) = [], os.pipe()
    for first in (0, 1000):
        pid = os.fork()
        if not pid:
            try:
                os.dup2(write, 1)
                row = 90 * attempt + first
                send(pathlib.Path(sys.argv[1]), 2000 * attempt + first, row)
            finally:
                os._exit(1)
        pids.append(pid)
    os.close(write)
    with open(read) as pipe:
        said = [pipe.readline() for _ in range(lines)]
        time.sleep(seconds)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        print(*said, *pipe)
"""


@pytest.mark.second
def test_killed_at_any_point_a_party_has_counted_what_it_sent(tmp_path):
    """Two processes at once, killed at a random time after some sends, ten times."""
    rng = np.random.default_rng(0)
    lines, seconds = rng.integers(10, size=10), rng.uniform(0, 0.03, 10)
    said = subprocess.run(
        [sys.executable, "-c", SENDING, tmp_path, *map(str, [*lines, *seconds])],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    sent = set(said.split())
    with closing(sqlite3.connect(tmp_path / FILE)) as db:
        ((tags,),) = db.execute("SELECT tags FROM released").fetchall()
    assert 20 < len(sent) <= len(tags) // 8 <= 300


def test_no_id_and_no_value_is_in_the_journal(tmp_path):
    ids = np.array([f"patient-{k}" for k in range(N)])
    parties = made(tmp_path, [limited(10, 30)] * 3)
    for party in parties:
        party.ids = ids
    pool(Parties(Exchange(RealParties(parties)), seed=0), range(5))
    content = (tmp_path / "a" / FILE).read_bytes()
    assert b"patient" not in content
    with closing(sqlite3.connect(tmp_path / "a" / FILE)) as db:
        ((kind, tags),) = db.execute("SELECT kind, tags FROM released").fetchall()
    assert (kind, len(tags)) == ("rows", 5 * 8)


def test_what_is_not_of_rows_is_counted_by_times(tmp_path):
    """From as many solutions as there are rows, all rows would follow."""
    strategy = CoresetVRLR(120, solver="cg", max_iter=2, seed=0)
    leaves = dict.fromkeys(strategy.terms.needs, Limit())
    leaves["coefficients"] = Limit(life=2)
    consent = Consent(allow_seed=True, leaves=leaves, peers=None)

    def run():
        strategy.start(RealParties(made(tmp_path, [consent] * 3)))

    run()
    run()
    with pytest.raises(PartyFailed, match="at most 2 disclosures of coefficients over"):
        run()


def test_times_in_a_run_are_counted():
    consent = Consent(leaves={"coefficients": Limit(run=2)}, peers=None)
    party = Party(np.ones((9, 1)), consent=consent)
    party.reveal("coefficients")
    party.reveal("coefficients")
    party.reveal("coefficients", again=True)  # what was told may be told again
    with pytest.raises(PartyError, match=r"at most 2 .* in a run; .* total is 3"):
        party.reveal("coefficients")


def test_refusals_run_out(tmp_path):
    """Each tells a bit: where a box has a row outside of it, say."""
    grid = RealParties(made(tmp_path, [letting(max_refusals=5)] * 3))
    for _ in range(5):
        parties = Parties(Exchange(grid))
        with pytest.raises(PartyFailed, match="does not allow rows"):
            pool(parties, range(3))
    with pytest.raises(PartyFailed, match="has refused 5 messages and will answer no"):
        Parties(Exchange(grid))


@pytest.mark.parametrize(
    ("least", "parties", "lines"),
    [
        *((3, 3, []), (3, 2, ["two-parties = true"]), (3, 1, ["min-parties = 1"])),
        (4, 2, ["min-parties = 2"]),
    ],
)
def test_a_consent_lacks_a_line_for_fewer_parties(least, parties, lines):
    assert Consent(min_parties=least).lacks(Terms(parties=parties)) == lines
