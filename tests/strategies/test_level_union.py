"""The parties unite the levels of text columns, and nobody learns who has which."""

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deviating import RealParties
from hypothesis import given, settings
from hypothesis import strategies as st
from supernodes import SuperNodes, write_rows
from transcripts import Recorder, is_uniform, our_steps

import vfl_flower as vf
from vfl_flower import (
    MUFC,
    Consent,
    FederationError,
    FKKMeans,
    LevelUnion,
    Party,
    PartyFailed,
)
from vfl_flower.app.config import as_trained, party_source
from vfl_flower.app.label import label
from vfl_flower.app.simulate import load
from vfl_flower.clients import level_union as client
from vfl_flower.data import load_party, read_texts
from vfl_flower.data.checking import check
from vfl_flower.data.levels import parse_levels
from vfl_flower.protocol import strategy as frame
from vfl_flower.protocol.columns import declared
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.party import PartyError, digest_ids
from vfl_flower.protocol.united import load_levels, save_levels
from vfl_flower.secure_aggregation.texts import TextCode
from vfl_flower.strategies import MUFCUnlearn

VOCABULARY = [f"diagnosis {k:03d}" for k in range(300)]
"""What a curious server may guess."""

Texts = dict[str, dict[str, int]]


def party(texts: Texts, name: str | None = None, **given: Any) -> Party:
    rows = max(1, *(sum(counts.values()) for counts in texts.values()))
    made = Party(np.zeros((rows, 1)), name=name, **given)
    made.texts = texts
    return made


def parties(*texts: Texts, folder: Path | None = None) -> list[Party]:
    made = []
    for j, own in enumerate(texts):
        state_dir = None if folder is None else folder / f"p{j}"
        made.append(party(own, f"p{j}", state_dir=state_dir))
    return made


def union(*texts: Texts, **given: Any) -> Any:
    given |= {"allow_two_parties": True}
    return vf.simulate(LevelUnion(**given), parties(*texts))


# -- exact -----------------------------------------------------------------------------

LEVELS = st.dictionaries(
    st.sampled_from(
        ["f", "m", " m ", "\uff4d", "other", "Äpfel", "x" * 100, "y" * 101]
    ),
    st.integers(1, 25),
    min_size=1,
)


@given(
    st.lists(
        st.fixed_dictionaries({"sex": LEVELS, "région": LEVELS}),
        min_size=2,
        max_size=5,
    )
)
@settings(max_examples=25, deadline=None)
def test_as_pythons_counter(texts):
    result = union(*texts, most_levels=16)
    totals: dict[str, Counter[str]] = {"sex": Counter(), "région": Counter()}
    for own in texts:
        for column, counts in own.items():
            for text, rows in counts.items():
                normal = "m" if text in (" m ", "\uff4d") else text
                if normal != "other" and len(normal.encode()) <= 100:
                    totals[column][normal] += rows
    expected = {
        column: (*sorted(t for t in counts if counts[t] >= 20), "other")
        for column, counts in totals.items()
    }
    assert result.model.levels_ == expected
    every = [rows for counts in totals.values() for rows in counts.values()]
    often = sorted((rows for rows in every if rows >= 20), reverse=True)
    assert result.model.counts_.tolist() == often
    assert result.model.n_rare_ == len(every) - len(often)
    assert result.ledger.round_trips == 5


def test_worked_example(tmp_path):
    """North has 9 + 2 + 9 = 20 rows and is kept; west has 19 and is other everywhere.

    East is at one party alone. Column b has no level of 20 rows.
    """
    federation = parties(
        {"a": {"north": 9, "west": 10}, "b": {"u": 3}},
        {"a": {"north": 2, "west": 9}, "b": {"v": 19}},
        {"a": {"north": 9, "east": 20, "other": 50}, "b": {"other": 30}},
        folder=tmp_path,
    )
    result = vf.simulate(LevelUnion(), federation)
    levels = {"a": ("east", "north", "other"), "b": ("other",)}
    assert result.model.levels_ == levels
    assert result.model.counts_.tolist() == [20, 20]
    assert result.metrics == {"levels": 2, "rare_levels": 3}
    for member in federation:
        assert load_levels(member.state_dir)[0] == levels
        assert (member.state_dir / "levels.json").stat().st_mode & 0o777 == 0o600
    assert "2 levels of at least 20 rows" in result.model.note
    result.model.save(tmp_path / "model.npz")
    again = vf.load_model(tmp_path / "model.npz")
    assert (again.counts_.tolist(), again.n_rare_) == ([20, 20], 3)


def test_a_party_of_many_levels_counts_its_most_frequent_ones(caplog):
    texts = {"a": {f"t{k:02d}": 30 + k for k in range(9)}}
    result = union(texts, {"a": {"t00": 25}}, most_levels=4)
    # Of t00 the second party alone counts its rows.
    assert result.model.levels_["a"] == ("t00", "t05", "t06", "t07", "t08", "other")
    assert result.model.counts_.tolist() == [38, 37, 36, 35, 25]
    assert "5 of 9 levels are not counted" in caplog.text


def test_bytes_do_not_depend_on_what_a_party_has():
    full = {"a": {text: 20 for text in VOCABULARY[:50]}}
    empty = {"a": {"rare": 1}}

    def sizes(*texts):
        entries = union(*texts, most_levels=50).ledger.entries
        return [
            entry.bytes_up
            for (action, _), entry in entries.items()
            if (action in ("level_union_count", "level_union_name"))
        ]

    assert len(set(sizes(full, full, empty)[:3])) == 1
    assert len(set(sizes(full, full, empty)[3:])) == 1


# -- who learns what -------------------------------------------------------------------


def recorded(*texts: Texts) -> Recorder:
    grid = Recorder(parties(*texts))
    LevelUnion(most_levels=300).start(grid)
    return grid


def views(grid: Recorder, action: str, name: str) -> list[Any]:
    return [e.values[name] for e in grid.transcript if e.action == action and e.up]


def brute_forced(tokens: set[tuple[int, ...]], key: bytes) -> set[str]:
    """Return the words of the vocabulary whose tokens are known."""
    found = TextCode(key).tokens([(0, word) for word in VOCABULARY])
    pairs = zip(VOCABULARY, found.tolist(), strict=True)
    return {word for word, token in pairs if tuple(token) in tokens}


def test_the_server_cannot_test_a_text(monkeypatch):
    """It can with the key, so that the attack is one."""
    seen = {}
    decode = client.SparseSum.decode

    def spied(self, total, *args, **kwargs):
        seen["tokens"], seen["counts"] = decode(self, total, *args, **kwargs)
        return seen["tokens"], seen["counts"]

    monkeypatch.setattr(client.SparseSum, "decode", spied)
    keys = []
    derive = client.derive_key
    monkeypatch.setattr(
        client, "derive_key", lambda *a: keys.append(derive(*a)) or keys[-1]
    )
    rare, often = VOCABULARY[7], VOCABULARY[40]
    grid = recorded(
        {"a": {rare: 1, often: 30}}, {"a": {often: 2}}, {"a": {VOCABULARY[9]: 3}}
    )
    tokens = {tuple(token) for token in seen["tokens"].tolist()}
    assert sorted(seen["counts"].tolist()) == [1, 3, 32]
    assert brute_forced(tokens, keys[0]) == {rare, often, VOCABULARY[9]}
    # What the server has seen of the key is encrypted; public values are no key.
    sent = b"".join(e.data for e in grid.transcript)
    assert keys[0] not in sent
    assert not any(word.encode() in sent for word in (rare, often))
    for guess in (bytes(32), keys[0][::-1], grid.run_id.to_bytes(32, "big")):
        assert not brute_forced(tokens, guess)
    # Nor is there a ciphertext of a rare level in any sum.
    (asked,) = {
        e.values["tokens"].tobytes()
        for e in grid.transcript
        if e.action == "level_union_name" and not e.up
    }
    assert np.frombuffer(asked, dtype=np.int64).size == 2


def test_what_a_party_sends_is_noise():
    grid = recorded(*({"a": {word: 20 for word in VOCABULARY}},) * 3)
    for action, name in (("count", "message"), ("name", "totals")):
        for array in views(grid, f"level_union_{action}", name):
            # Elements of 61 bits: the top bits of a byte of each are uniform.
            assert is_uniform((np.asarray(array) >> np.uint64(40)).astype(np.uint8))


def test_every_step_is_in_the_table():
    steps = our_steps("level_union")
    assert {s.removeprefix("level_union_") for s in steps} == {
        *("begin", "count", "name", "keep")
    }
    for step in steps.values():
        assert re.search(rf"^ *{step.__name__}  ", str(LevelUnion.__doc__), re.M)


# -- a server that deviates ------------------------------------------------------------


def deviating(monkeypatch, tamper) -> None:
    class Deviating(Parties):
        def _round_trip(self, step, requests, sums, *blocks):
            told = {
                j: tamper(step.action.removeprefix("level_union_"), j, dict(values))
                for j, values in requests.items()
            }
            return super()._round_trip(step, told, sums, *blocks)

    monkeypatch.setattr(frame, "Parties", Deviating)


THREE: tuple[Texts, ...] = (
    {"a": {"north": 15, "rare": 1}},
    {"a": {"north": 9, "south": 12}},
    {"a": {"south": 25, "rare": 2}},
)


def refusal(strategy: LevelUnion, *texts: Texts, **given: Any) -> PartyFailed:
    with pytest.raises(PartyFailed) as caught:
        strategy.start(RealParties(parties(*texts, **given)))
    return caught.value


def test_a_server_that_asks_for_rare_levels_is_refused(monkeypatch, tmp_path):
    """It gets ciphertexts and their sums, and no party tells its user of the level."""
    monkeypatch.setattr(LevelUnion, "replace", lambda self, **_: self)
    strategy = LevelUnion()
    object.__setattr__(strategy, "least_rows", 1)  # at the server alone
    deviating(
        monkeypatch,
        lambda _, __, v: v | ({"least_rows": 20} if "least_rows" in v else {}),
    )
    error = refusal(strategy, *THREE, folder=tmp_path)
    assert (error.party, error.action) == ("p0", "level_union_keep")
    assert "at least 20 rows of all parties, 1 have fewer" in error.reason
    assert not list(tmp_path.rglob("levels.json"))


@pytest.mark.parametrize("column", [0, 1, 2, 18])
@pytest.mark.parametrize("add", [1, 17])
def test_forged_sums_are_refused(monkeypatch, column, add):
    def forged(action, j, values):
        if action == "keep" and j == 1:
            values["totals"] = values["totals"].copy()
            values["totals"][0, column] += np.uint64(add)
        return values

    deviating(monkeypatch, forged)
    error = refusal(LevelUnion(), *THREE)
    assert error.party == "p1"
    assert "levels cannot be read" in error.reason


def test_a_multiple_of_a_rare_count_is_refused(monkeypatch):
    """All sums times 10 keep the ciphertext; the tag does not grow with them."""
    monkeypatch.setattr(LevelUnion, "replace", lambda self, **_: self)
    strategy = LevelUnion()
    object.__setattr__(strategy, "least_rows", 1)

    def scaled(action, _, values):
        if action == "keep":
            field = TextCode.field
            ten = np.full_like(values["totals"], 10)
            values["totals"] = field.multiply(values["totals"], ten)
            values["least_rows"] = 20
        return values

    deviating(monkeypatch, scaled)
    assert "counts must be the sums" in refusal(strategy, *THREE).reason


def test_swapped_levels_are_refused(monkeypatch):
    def swapped(action, _, values):
        if action == "keep":
            values["totals"] = values["totals"][::-1].copy()
        return values

    deviating(monkeypatch, swapped)
    assert "levels cannot be read" in refusal(LevelUnion(), *THREE).reason


def test_a_level_that_a_party_has_often_enough_cannot_be_left_out(monkeypatch):
    def fewer(action, _, values):
        if action == "name":
            values["tokens"] = values["tokens"][:0]
        return values

    deviating(monkeypatch, fewer)
    error = refusal(LevelUnion(), *THREE)
    assert (error.party, "one or more of this party's" in error.reason) == ("p2", True)


def test_a_smaller_threshold_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="least_rows must be a whole number of at"):
        LevelUnion(least_rows=19)
    deviating(
        monkeypatch,
        lambda _, __, v: v | ({"least_rows": 19} if "least_rows" in v else {}),
    )
    assert "'least_rows'" in refusal(LevelUnion(), *THREE).reason


def test_tokens_are_named_once(monkeypatch):
    def again(action, j, values):
        if action == "name":
            values["tokens"] = np.repeat(values["tokens"], 2, axis=0)
        return values

    deviating(monkeypatch, again)
    assert "tokens must be distinct" in refusal(LevelUnion(), *THREE).reason


def test_a_party_without_consent_refuses(tmp_path):
    federation = parties(*THREE, folder=tmp_path)
    for member in federation:
        member.consent = Consent(peers=None)
    with pytest.raises(FederationError, match=r"3 of 3 parties.*levels = true"):
        LevelUnion().start(RealParties(federation))


def test_two_parties_need_a_setting():
    with pytest.raises(FederationError, match="at least three parties"):
        vf.simulate(LevelUnion(), parties(*THREE[:2]))


def test_parties_that_unite_other_columns():
    texts = ({"a": {"x": 1}}, {"a": {"x": 1}}, {"b": {"x": 1}})
    with pytest.raises(FederationError, match="'p2' has 1 such columns"):
        union(*texts)
    bare = Party(np.zeros((3, 1)), name="p1")
    federation = [*parties(THREE[0]), bare, party(THREE[2], "p2")]
    with pytest.raises(PartyFailed, match="a text column must be named") as error:
        vf.simulate(LevelUnion(), federation)
    assert error.value.party == "p1"


# -- files -----------------------------------------------------------------------------

HEADER = ["id", "age", "region"]
NODE = {"id-column": "id", "levels": "region=united"}


def table(m: int, n: int = 60) -> list[list[str]]:
    """Return the rows of a party: east is at the first, rare at the last alone."""
    rng = np.random.default_rng(m)
    rare = {0: [], 1: ["west"], 2: ["rare", "west"]}[m]
    regions = [*(["north", " north", "south"] * 12), *rare * 3, *["east"] * 25][:n]
    regions = regions if m == 0 else [r if r != "east" else "south" for r in regions]
    regions += [""] * (n - len(regions)) if m == 1 else ["north"] * (n - len(regions))
    return [
        [f"{m}-{k}", f"{rng.normal() + 5 * (k % 2):.4f}", region]
        for k, region in enumerate(regions)
    ]


def write(path: Path, rows: list[list[str]]) -> None:
    write_rows(path, HEADER, *rows)


@pytest.fixture
def folder(files: Path) -> Path:
    for m in range(3):
        write(files / f"{m}.csv", table(m))
    return files


def pooled() -> Counter[str]:
    regions = [row[2].strip() for m in range(3) for row in table(m) if row[2]]
    return Counter(regions)


def nodes(folder: Path, leaves: str, **run: object) -> SuperNodes:
    return SuperNodes(folder, f"[leaves]\n{leaves}", NODE, **run)


def unite(folder: Path, **run: Any) -> Any:
    config = {"strategy": "unite-levels"} | run
    return LevelUnion().start(nodes(folder, "levels = true\n", **config))


def kmeans(**settings: Any) -> FKKMeans:
    return FKKMeans(2, 2, n_features=20, iterations=2, n_init=2, seed=5, **settings)


def test_files_are_united_and_encoded_alike(folder):
    counts = pooled()
    assert counts["rare"] < 20 <= counts["east"]
    model = unite(folder).model
    wanted = (*sorted(t for t in counts if counts[t] >= 20), "other")
    assert model.counts_.sum() == sum(counts[t] for t in wanted[:-1])
    for m in range(3):
        state = folder.parent / f"state-{m}"
        assert load_levels(state)[0] == {"region": wanted}
        node = NODE | {"data": str(folder / f"{m}.csv"), "state-dir": str(state)}
        made = load_party(party_source(node, {"strategy": "fk-kmeans"}))
        assert made.columns == ["age", *(f"region={level}" for level in wanted)]
        texts = [row[2].strip() for row in table(m)]
        for k, text in enumerate(texts):
            ones = [float(level == text) for level in wanted]
            if text and text not in wanted:
                ones[-1] = 1.0
            expected = ones if text else [np.nan] * len(ones)
            np.testing.assert_array_equal(made.X[k, 1:], expected)


def test_a_digest_of_united_levels_tests_no_guess(folder):
    """That of levels without a salt does, so that the attack is one."""
    unite(folder)
    digests, guesses = [], []
    for m in range(3):
        state = folder.parent / f"state-{m}"
        levels, salt = load_levels(state)
        node = NODE | {"data": str(folder / f"{m}.csv"), "state-dir": str(state)}
        for digest, kept in ((digests, salt), (guesses, "")):
            save_levels(state, levels, kept)
            made = load_party(party_source(node, {"strategy": "fk-kmeans"}))
            digest.append(declared(made)["levels_digest"])
    texts = np.array(["", "region", *levels["region"]])
    assert set(guesses) == {digest_ids(texts)}
    assert len(set(digests)) == 1
    assert set(digests).isdisjoint(guesses)
    assert len(salt) == 64


def test_clusters_of_united_columns_and_labels_later(folder):
    unite(folder)
    leaves = "row-sums = true\nembedded-rows = true\n"
    grid = nodes(folder, leaves, strategy="fk-kmeans")
    model = kmeans(clustering="coreset").start(grid).model
    # A later union changes nothing for the model, nor does a lost file.
    state = folder.parent / "state-1"
    save_levels(state, {"region": ("x", "other")})
    out = folder.parent / "labels.csv"
    config = f'data="{folder / "1.csv"}" state-dir="{state}" id-column="id"'
    label(model.model, f'{config} levels="region=united"', out)
    with out.open() as file:
        again = [row["prediction"] for row in csv.DictReader(file)]
    with (state / f"predictions-{model.model}.csv").open() as file:
        assert [row["prediction"] for row in csv.DictReader(file)] == again


def test_forgetting_uses_the_levels_of_training(folder):
    write(folder / "1.csv", [row for row in table(1) if row[2]])  # MUFC fills nothing
    unite(folder)
    run = {"strategy": "mufc"}
    trained = MUFC(
        2, box="-20,20", server_state=folder.parent / "server", seed=3
    ).start(nodes(folder, "centroids = true\n", **run))
    model = trained.model.number
    kept = json.loads((folder.parent / "state-1" / "levels.json").read_text())
    for m in range(3):
        save_levels(folder.parent / f"state-{m}", {"region": ("x", "y", "other")})
    run |= {"task": "unlearn", "model": model}
    (folder.parent / "state-1" / "forget.txt").write_text("1-3\n")
    task = MUFCUnlearn(model=model, server_state=folder.parent / "server", seed=4)
    forgotten = task.start(nodes(folder, "centroids = true\n", **run))
    assert forgotten.model.sizes_.sum() == trained.model.sizes_.sum() - 1
    node = NODE | {
        "data": str(folder / "1.csv"),
        "state-dir": str(folder.parent / "state-1"),
    }
    source = as_trained(party_source(node, run), run)
    assert list(source.levels["region"]) == kept["levels"]["region"]


def test_without_a_union_a_run_is_refused(folder):
    node = NODE | {"data": str(folder / "0.csv"), "party-name": "clinic"}
    source = party_source(node, {"strategy": "fk-kmeans"})
    with pytest.raises(PartyError, match="'clinic': united levels need a state-dir"):
        load_party(source)
    state = folder.parent / "state"
    state.mkdir(mode=0o700)
    source = party_source(node | {"state-dir": str(state)}, {"strategy": "fk-kmeans"})
    with pytest.raises(PartyError, match="has no united levels: run the strategy"):
        load_party(source)
    save_levels(state, {"other column": ("other",)})
    with pytest.raises(PartyError, match="'region' were not united"):
        load_party(source)
    (state / "levels.json").write_text("{}")
    with pytest.raises(PartyError, match="united levels are damaged"):
        load_party(source)
    with pytest.raises(PartyError, match="only where parties hold different rows"):
        load_party(party_source(node, {"strategy": "fdskl"}))


def test_texts_are_counted_in_their_normal_form(folder):
    write(
        folder / "0.csv",
        [
            ["1", "2", "\uff4eorth "],
            ["2", "2", "north"],
            ["3", "2", "?"],
            ["4", "2", "\uff2e\uff21"],
        ],
    )
    source = party_source(NODE | {"data": str(folder / "0.csv")}, {})
    assert read_texts(source) == {"region": {"north": 2}}


def test_simulated_parties(folder, tmp_path):
    config = {"levels": "region=united", "id-column": "id"}

    def loaded(name, **more):
        run = config | {"strategy": name} | more
        sources = [
            party_source({"partition-id": m}, run | {"data": str(folder)})
            for m in range(3)
        ]
        states = [tmp_path / f"s{m}" for m in range(3)]
        from dataclasses import replace

        return [
            load(replace(s, state_dir=d), run)
            for s, d in zip(sources, states, strict=True)
        ]

    made = vf.simulate(LevelUnion(), loaded("unite-levels")).model
    ours = vf.simulate(kmeans(), loaded("fk-kmeans")).model
    assert len(ours.labels_[0]) == 60
    assert len(loaded("fk-kmeans")[0].columns) == 1 + len(made.levels_["region"])


def test_check_proposes_and_explains(folder):
    path = str(folder / "0.csv")
    of_rows = check(party_source({"data": path}, {"strategy": "mufc"})).findings
    assert any('levels="region=united"' in finding.text for finding in of_rows)
    checked = check(party_source(NODE | {"data": path}, {}))
    assert checked.sound
    texts = [f.text for f in checked.findings]
    assert any("those with enough rows at all parties" in text for text in texts)
    assert not any("unite them" in text for text in texts)


def test_levels_of_a_config(tmp_path):
    assert parse_levels("a=united; b = x|y", files=True) == {"a": (), "b": ("x", "y")}
    path = tmp_path / "levels.toml"
    path.write_text('a = "united"\n')
    assert parse_levels(str(path), files=True) == {"a": ()}
