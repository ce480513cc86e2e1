"""A model is removed at the server and at all parties, and nothing else is."""

import numpy as np
import pytest
from deviating import RealParties
from forgetting import agreed
from forgetting import removal as forgetting
from later_tasks import made

from vfl_flower import Party, PartyFailed, simulate
from vfl_flower.clients import removal as steps
from vfl_flower.clients.mufc.state import ClientState
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.protocol.contract import ContractError, structure
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies.mufc.state import ServerState
from vfl_flower.strategies.removal import MUFCRemoval, Removal


def names(tmp_path):
    return sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.*"))


def trained(kind, tmp_path):
    strategy, parties = made(kind, tmp_path)
    return parties, strategy.start(InProcessGrid(parties)).model.id


def removal(kind, number, tmp_path):
    if kind == "mufc":
        return MUFCRemoval(number, server_state=tmp_path / "server")
    return Removal(number)


@pytest.mark.parametrize("kind", ["mufc", "kernel", "direct"])
def test_nothing_of_the_model_stays_and_all_of_others_does(kind, tmp_path):
    parties, other = trained(kind, tmp_path)
    before = names(tmp_path)
    parties, number = trained(kind, tmp_path)
    assert len(names(tmp_path)) == 2 * len(before)
    result = simulate(removal(kind, number, tmp_path), parties)
    assert result.metrics == {"parties": 3, "removed": 3}
    assert names(tmp_path) == before
    assert all(other in name for name in before)


def test_a_history_of_ids_goes_too(tmp_path):
    """Whatever rows and columns the parties hold by now."""
    parties, number = trained("mufc", tmp_path)
    server = tmp_path / "server"
    simulate(forgetting(parties, server, number, ["north.1", "north.4"]), parties)
    assert ClientState(tmp_path / "north", number).removed()
    others = [
        Party(np.ones((5 + j, 1 + j)), name=party.name, state_dir=party.state_dir)
        for j, party in enumerate(parties)
    ]
    simulate(removal("mufc", number, tmp_path), others)
    assert names(tmp_path) == []
    with pytest.raises(ValueError, match="the server has no state of model"):
        simulate(forgetting(parties, server, number), parties)


def test_it_can_be_repeated_and_who_has_nothing_says_so(tmp_path, caplog):
    parties, number = trained("direct", tmp_path)
    (tmp_path / "south" / f"{number}.npz").unlink()
    with caplog.at_level("INFO", "vfl_flower"):
        first = simulate(Removal(number), parties)
        again = simulate(Removal(number), parties)
    assert (first.metrics["removed"], again.metrics["removed"]) == (2, 0)
    assert f"north: model {number} was removed" in caplog.text
    assert f"south: model {number} was not stored" in caplog.text
    parties[0].state_dir = None
    assert simulate(Removal(number), parties).metrics["removed"] == 0


@pytest.mark.parametrize("number", ["../journal", "journal", "*", "0123456g", "[a-f]*"])
def test_no_other_name_leads_to_a_file(number, tmp_path):
    parties, _ = trained("direct", tmp_path)
    before = names(tmp_path)
    strategy = Removal("01234567")
    vars(strategy)["model_id"] = number
    strategy.replace = lambda: strategy  # a server checks nothing
    with pytest.raises(PartyFailed, match="8 to 32 lower-case hexadecimal digits"):
        strategy.start(RealParties(parties))
    assert set(before) <= set(names(tmp_path))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("20240101.npz", "is damaged: its checksum is wrong"),
        ("{}.sqlite", "file is not a database"),
    ],
)
def test_nothing_goes_where_such_a_file_is_something_else(name, reason, tmp_path):
    """Data of a day, say, which the party keeps beside its parts; or of the model."""
    parties, number = trained("direct", tmp_path)
    other_file = tmp_path / "south" / name.format(number)
    other_file.write_bytes(b"x" * 5000)
    before = names(tmp_path)
    with pytest.raises(PartyFailed, match=reason):
        simulate(Removal(other_file.stem), parties)
    assert other_file.read_bytes() == b"x" * 5000
    assert names(tmp_path) == before


def test_other_files_of_the_folder_stay(tmp_path):
    parties, number = trained("direct", tmp_path)
    folder, start = tmp_path / "south", f"predictions-{number}"
    notes, link = f"{start}-notes.csv", f"{start}-0a1b2c3d.csv"
    (folder / notes).write_text("id,prediction\n")
    (folder / f"{start}.csv").write_text("my,own\n1,2\n")
    (folder / link).symlink_to(notes)
    (folder / f"{start}-0123456789abcdef.csv").write_text("id,prediction,score\n")
    (folder / "forget.txt").write_text("7\n")
    simulate(Removal(number), parties)
    assert names(folder) == sorted(["forget.txt", notes, link, f"{start}.csv"])


def test_a_link_is_not_followed(tmp_path):
    parties, number = trained("direct", tmp_path)
    part = tmp_path / "south" / f"{number}.npz"
    target = part.rename(tmp_path / "elsewhere.npz")
    part.symlink_to(target)
    with pytest.raises(PartyFailed, match="party 'south' failed in 'removal_find'"):
        simulate(Removal(number), parties)
    assert target.exists()
    target.unlink()
    with pytest.raises(PartyFailed, match="party 'south' failed in 'removal_find'"):
        simulate(Removal(number), parties)
    assert part.is_symlink()


def test_the_journal_stays_and_goes_on(tmp_path):
    """What a party has told is still counted after the model is gone."""
    strategy, parties = made("mufc", tmp_path)
    kinds = {"centroids": Limit(), "rows": Limit()}
    for party in parties:
        party.consent = Consent(allow_seed=True, peers=None, leaves=kinds)
    number = strategy.start(RealParties(parties)).model.id
    journals = [party.state_dir / "journal.sqlite" for party in parties]
    sizes = [path.stat().st_size for path in journals]
    removal("mufc", number, tmp_path).start(RealParties(parties))
    assert all(path.exists() for path in journals)
    after = [path.stat().st_size for path in journals]
    assert all(a >= b for a, b in zip(after, sizes, strict=True))


def test_an_id_has_at_most_32_letters():
    for step in (steps.find, steps.remove):
        structure(step.contract.request, {"model": "0" * 32}, {})
        with pytest.raises(ContractError, match=r"'model' .* 32"):
            structure(step.contract.request, {"model": "0" * 33}, {})


def test_the_server_says_that_its_state_is_removed(tmp_path, caplog):
    state = ServerState.create(tmp_path, "0123abcd", agreed(), ["north"])
    strategy = MUFCRemoval("0123abcd", server_state=tmp_path)
    with caplog.at_level("INFO", "vfl_flower"):
        strategy.remove_at_server()
        strategy.remove_at_server()
    assert not state.exists
    assert caplog.messages == ["the server: the state of model 0123abcd is removed"]
