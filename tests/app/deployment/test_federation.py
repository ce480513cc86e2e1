"""The commands that set up a federation: what they write, print and refuse.

That the processes which they start make a federation is shown in
tests/wiring/test_tutorial.py.
"""

import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tomllib
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from cards import card as new_card
from flwr.cli.flower_config import read_superlink_connection
from flwr.common.config import parse_config_args
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.superlink.config_loader import load_control_authn_plugin
from flwr.supernode.cli.flower_supernode import (
    _parse_args_run_supernode,
    _try_setup_client_authentication,
)
from typer.testing import CliRunner
from wiring.commands import started_in
from wiring.handshake import check_supernode_key, shake_hands

from vfl_flower.app.commands.cli import app
from vfl_flower.app.commands.options import check_there
from vfl_flower.app.config import party_source
from vfl_flower.app.deployment import federation as deployed
from vfl_flower.app.deployment.cards import Card
from vfl_flower.app.deployment.certificates import (
    write_certificates,
    write_supernode_key,
)
from vfl_flower.app.deployment.foreground import RESTART, Shown, unit
from vfl_flower.app.deployment.party_folder import terms_of
from vfl_flower.app.deployment.processes import (
    START,
    Processes,
    _Commands,
    free_port,
    wait_for,
)
from vfl_flower.data import load_party
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.party.identity import public_identity
from vfl_flower.strategies import algorithms

ROWS = "id,a,b,y\n" + "".join(f"r{i},{i},{i * i % 7},{i % 3}\n" for i in range(40))


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(*words):
    done = run(*words)
    assert done.exit_code == 1, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    (sentence,) = re.findall(r"(?m)^Error: (.*)$", done.stderr)
    return sentence


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Return the folder in which the commands run, with the file of a party."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.csv").write_text(ROWS)
    return tmp_path


OPTIONS = ("--data", "a b.csv", "--id-column", "id", "--label-column", "y")


@pytest.fixture
def airline(place):
    assert run("init", "airline", *OPTIONS).exit_code == 0
    return place / "airline"


@pytest.fixture
def federation(place):
    assert run("certificates", "link.example").exit_code == 0
    return place / "federation"


def modes(folder):
    return {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}


# -- init ------------------------------------------------------------------------------


def test_init_writes_what_flower_and_the_package_read(airline, place):
    assert airline.stat().st_mode & 0o777 == 0o700
    assert modes(airline) == {
        "party.toml": 0o600,
        "consent.toml": 0o600,
        "supernode.key": 0o600,
        "state": 0o700,
        "airline.card": modes(airline)["airline.card"],
    }
    assert modes(airline / "state") == {"identity.pem": 0o600}

    words = deployed.supernode_command(airline, "link.example:8000", place / "ca.crt")
    args = _parse_args_run_supernode().parse_args(words[words.index("supernode") + 1 :])
    config = parse_config_args([args.node_config])  # as flower-supernode reads it
    source = party_source(config, {})
    assert (source.data, source.index) == (str(place / "a b.csv"), None)
    assert (source.id_column, source.label_column) == ("id", "y")
    party = load_party(source)
    assert (party.X.shape, party.name) == ((40, 2), "airline")
    assert Consent.load(source.consent) == Consent()

    assert _try_setup_client_authentication(args) is not None
    card = Card.load(airline / "airline.card")
    assert card.name == "airline"
    assert card.identity == public_identity(source.state_dir)
    (airline / "supernode.key.pub").write_text(card.supernode)
    check_supernode_key(airline / "supernode.key")  # as flwr supernode register does


def test_options_stand_in_the_node_config(place):
    (place / "r.csv").write_text("r0;1,5;x\nr1;?;y\n" * 20)
    options = ["--data", "r.csv", "--no-header", "--delimiter", ";", "--missing", "?"]
    options += ["--standardize", "--impute", "median", "--columns", "x1,x2"]
    options += ["--max-levels", "7", "--encoding", "utf-8"]
    done = run("init", "weather", *options)
    assert done.exit_code == 0, done.output
    assert "only permits sums over three or more parties" in done.output
    assert Card.load(place / "weather" / "weather.card").fingerprint in done.output
    assert "PRIVATE" not in done.output
    table = tomllib.loads((place / "weather" / "party.toml").read_text())
    assert table == {
        "data": str(place / "r.csv"),
        "columns": "x1,x2",
        "missing": "?",
        "max-levels": 7,
        "delimiter": ";",
        "encoding": "utf-8",
        "header": False,
        "standardize": True,
        "impute": "median",
        "party-name": "weather",
        "state-dir": str(place / "weather" / "state"),
        "consent": str(place / "weather" / "consent.toml"),
    }


@pytest.mark.parametrize("strategy", algorithms())
def test_for_a_strategy_the_consent_lets_its_needs_leave(place, strategy):
    done = run("init", "airline", *OPTIONS, "--for", strategy)
    assert done.exit_code == 0, done.output
    terms = terms_of(strategy)
    consent = Consent.load(place / "airline" / "consent.toml")
    assert consent == Consent(leaves=dict.fromkeys(terms.needs, Limit()))
    assert f"what {strategy} needs:" in done.output
    assert terms.less in done.output
    for kind in terms.needs:
        assert re.search(rf"(?m)^  {kind}: \w", done.output)


def test_several_files_and_a_folder_of_parquet_are_data_too(place):
    """As ``check``, ``init`` and ``party --data`` look for them; a query runs later."""
    (place / "rows.parquet").mkdir()
    with pytest.raises(ValueError, match="data file not found"):
        check_there("rows.parquet")
    pd.read_csv(place / "a b.csv").to_parquet(place / "rows.parquet" / "1.parquet")
    for data in ("rows.parquet", "rows.parquet/*.parquet", "duckdb:SELECT 1"):
        check_there(data)
    options = "--id-column", "id", "--label-column", "y"
    for name, data in (("one", "rows.parquet"), ("two", "rows.parquet/*.parquet")):
        assert run("init", name, "--data", data, *options).exit_code == 0


def test_a_file_has_the_rows_and_labels_that_a_strategy_needs(place):
    table = pd.read_csv("a b.csv")
    more = {f"c{j}": table.index * j % 17 + table.index / 9 for j in range(8)}
    tables = {
        "at least 20 rows for 2 columns, but the file has 5": table[:5],
        "has the same value in all rows": table.assign(y=1),
        "label-column 'y' is constant": table.assign(y="no"),
        "coreset-vrlr needs labels that are numbers": table.assign(y=list("ab") * 20),
        "at least 44 rows for 10 columns, but the file has 40": table.assign(**more),
    }
    options = ("--id-column", "id", "--label-column", "y")
    for k, (rule, rows) in enumerate(tables.items()):
        rows.to_csv(f"{k}.csv", index=False)
        done = run("check", f"{k}.csv", *options, "--for", "coreset-vrlr")
        assert done.exit_code == 1, done.output
        assert rule in " ".join(done.output.split())
    assert run("check", "0.csv", *options).exit_code == 0
    for strategy in algorithms():
        assert "to fix: 0" in run("check", *OPTIONS[1:], "--for", strategy).output


def test_a_file_is_checked_as_the_strategy_reads_it(place):
    """Text is an error for ``mufc``, which encodes nothing, and only there."""
    (place / "t.csv").write_text("a,b\n" + "1,x\n2,y\n" * 20)
    assert run("init", "one", "--data", "t.csv", "--for", "fdskl").exit_code == 0
    both = ("--for", "fdskl", "--for", "mufc")
    assert "must be fixed" in refused("init", "other", "--data", "t.csv", *both)
    assert not (place / "other").exists()


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (["a/b", *OPTIONS], "name must be 1 to 100 letters"),
        ([".", *OPTIONS], "name must be 1 to 100 letters"),
        (["x", *OPTIONS, "--for", "magic"], "strategy must be one of coreset-vrlr"),
        (
            ["x", *OPTIONS, "--impute", "zero"],
            "impute must be one of mean, median, none",
        ),
        (["x", *OPTIONS, "--max-levels", "-1"], "max-levels must be a whole number"),
        (["x", "--data", "none.csv"], "data file not found: 'none.csv'"),
        (["x", "--data", "n*.parquet"], "data file not found: 'n*.parquet'"),
        (
            ["x", *OPTIONS, "--standardize", "--for", "mufc"],
            "standardize must be false if parties hold different rows",
        ),
    ],
)
def test_what_init_refuses(place, words, rule):
    assert rule in refused("init", *words)
    assert [path.name for path in place.iterdir()] == ["a b.csv"]


def test_nothing_is_overwritten(airline, place):
    before = {p: p.read_bytes() for p in airline.rglob("*") if p.is_file()}
    assert "airline exists, and init does not" in refused("init", "airline", *OPTIONS)
    assert {p: p.read_bytes() for p in airline.rglob("*") if p.is_file()} == before


def test_nothing_is_half_written(place, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Card, "write", fail)
    assert refused("init", "airline", *OPTIONS) == "No space left on device"
    assert [path.name for path in place.iterdir()] == ["a b.csv"]


# -- certificates and coordinator ------------------------------------------------------


def test_certificates_are_for_their_hosts(federation):
    assert federation.stat().st_mode & 0o777 == 0o700
    assert modes(federation)["server.key"] == 0o600
    for host in ("link.example", "localhost", "127.0.0.1"):
        shake_hands(federation, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'other"):
        shake_hands(federation, "other.example")
    assert "already has certificates" in refused("certificates", "link.example")
    words = ("10.1.2.3", "link.example", "--folder", "x", "--days", 30)
    assert run("certificates", *words).exit_code == 0
    shake_hands(Path("x"), "10.1.2.3")
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shake_hands(federation, "127.0.0.1", ca=Path("x/ca.crt"))


def test_no_key_is_overwritten(tmp_path):
    write_certificates(tmp_path, ["127.0.0.1"])
    write_supernode_key(tmp_path / "a.key")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(FileExistsError):
        write_certificates(tmp_path, ["127.0.0.1"])
    with pytest.raises(FileExistsError):
        write_supernode_key(tmp_path / "a.key")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_installed_superlink_has_no_accounts(monkeypatch):
    """As docs/deploy.md says under "Who can start a run"."""
    plugin = load_control_authn_plugin()
    assert isinstance(plugin, NoOpControlAuthnPlugin)
    assert plugin.validate_tokens_in_metadata([])[0]
    monkeypatch.setenv("FLWR_OIDC_ENABLED", "1")
    with pytest.raises(SystemExit, match="OIDC account authentication is unavailable"):
        load_control_authn_plugin()


@pytest.mark.parametrize("host", ["https://a", "a:8000", "a b", "", "-a", "a" * 64])
def test_a_host_that_is_none(place, host):
    assert "host must be a name (such as" in refused("certificates", "--", host)
    assert not (place / "federation").exists()


def test_the_commands_of_a_coordinator_are_understood(federation):
    (name, *options) = deployed.superlink_command(federation, 8001)
    args = _parse_args_run_superlink().parse_args(options)
    assert name == "flower-superlink"
    assert (args.host, args.port) == ("127.0.0.1", 8001)  # not to be reached by others
    assert args.enable_supernode_auth
    assert args.database == str(federation / "flwr" / "superlink.sqlite")
    assert not args.insecure
    for path in (args.ssl_ca_certfile, args.ssl_certfile, args.ssl_keyfile):
        assert Path(path).is_file()
    assert args.isolation == "process"  # what starts the ServerApps is another one
    for words, module in (
        (deployed.server_executor_command(federation, 8001, 7), "server_executor"),
        (deployed.gate_command(federation, "0.0.0.0", 8000, 8001), "gate"),
    ):
        assert words[:3] == [
            sys.executable,
            "-m",
            f"vfl_flower.app.deployment.{module}",
        ]


def test_flower_finds_the_superlink(federation, monkeypatch):
    deployed.write_connection(federation, 8001, federation)
    monkeypatch.setenv("FLWR_HOME", str(federation))
    for name in (None, "federation"):
        connection = read_superlink_connection(name)
        assert connection.address == "127.0.0.1:8001"
        assert connection.root_certificates == str(federation / "ca.crt")


def test_what_coordinator_refuses(place, airline, federation):
    cards = ("--card", airline / "airline.card")
    link = ("coordinator", federation)
    assert "is not a party's card" in refused(*link, "--card", airline / "party.toml")
    assert "cards must differ in name" in refused(*link, *cards, *cards)
    assert "must differ" in refused(*link, *cards, "--port", 8001)
    assert "written by vfl-flower certificates" in refused("coordinator", place, *cards)
    assert run(*link).exit_code == 2  # of no party
    assert run(*link, *cards, "--port", 70000).exit_code == 2
    sentence = refused(*link, *cards, "--host", "no-such-host")
    assert "of no-such-host must be free" in sentence
    (federation / "server.key").unlink()
    assert "server.key must be a file" in refused(*link, *cards)


def test_a_port_that_is_taken(airline, federation):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ("coordinator", federation, "--card", airline / "airline.card")
        for ports in (
            ("--port", port, "--local-port", free_port()),
            ("--port", free_port(), "--local-port", port),
        ):
            sentence = refused(*words, "--host", "127.0.0.1", *ports)
            assert sentence.startswith(f"port {port} of 127.0.0.1 must be free")


@pytest.mark.second
def test_a_second_coordinator_of_a_folder_changes_nothing(airline, federation):
    words = ("coordinator", federation, "--card", airline / "airline.card")
    holder = "from vfl_flower.app.deployment.federation import *; import sys, time"
    code = f"{holder}\nwith locked(Path(sys.argv[1])): print(1, flush=True); input()"
    command = [sys.executable, "-c", code, str(federation)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as first:
        first.stdout.readline()
        before = sorted(federation.rglob("*"))
        sentence = refused(*words)
        assert sorted(federation.rglob("*")) == before
        first.kill()
    assert f"{federation} already has a running coordinator" in sentence
    assert f"process {first.pid} since 20" in sentence
    with deployed.locked(federation):  # the lock ends with the process
        pass


def test_certificates_that_are_valid_no_longer(tmp_path, airline):
    (old := tmp_path / "old").mkdir()
    write_certificates(old, ["127.0.0.1"], days=0)  # from five minutes ago
    cards = ("--card", airline / "airline.card")
    rule = "must be valid, but it expired on"
    assert rule in refused("coordinator", old, *cards)
    place = ("--superlink", "a:1", "--ca", old / "ca.crt")
    assert rule in refused("party", airline, *place)


# -- party -----------------------------------------------------------------------------


@pytest.fixture
def take_part(airline, federation):
    """Return the words of ``party``, which print a unit in the place of a start."""
    place = ("--superlink", "link.example:8000", "--ca", federation / "ca.crt")
    return ("party", airline, *place, "--systemd")


def write_card(place, name="weather", byte=7):
    made = new_card(name, byte)
    made.write(path := place / f"{name}-{byte}.card")
    return made, path


def test_party_pins_its_peers_once(place, airline, take_part):
    path = airline / "consent.toml"
    before = path.read_text()
    weather, one = write_card(place)
    registry, other = write_card(place, "registry 2", 8)
    done = run(*take_part, "--peer", one, "--peer", other)
    assert done.exit_code == 0, done.output
    peers = {"weather": weather.identity, "registry 2": registry.identity}
    assert Consent.load(path) == Consent(peers=peers)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith(before)  # all comments
    for made in (weather, registry):
        assert f'{made.name} = "{made.identity}"' in done.stderr
        assert made.fingerprint in done.stderr
    after = path.read_text()
    assert run(*take_part, "--peer", one).exit_code == 0  # again
    assert run(*take_part).exit_code == 0
    assert path.read_text() == after


@pytest.mark.parametrize(
    "text",
    [
        "min-parties = 4\n",
        "[peers]",
        "  [ peers ]  # mine\n\n[leaves]\nrows = true\n",
        "# [peers]\n[leaves]\nrows = true\n",
        '[peers]\nweather = "{identity}"\n[leaves]\n',
        "\ufeffmin-parties = 3\n[peers]\n",
    ],
)
def test_peers_are_added_to_any_consent(place, airline, take_part, text):
    weather, one = write_card(place)
    registry, other = write_card(place, "registry", 8)
    path = airline / "consent.toml"
    path.write_text(text.format(identity=weather.identity))
    before = Consent.load(path)
    done = run(*take_part, "--peer", one, "--peer", other)
    assert done.exit_code == 0, done.output
    peers = {"weather": weather.identity, "registry": registry.identity}
    assert Consent.load(path) == replace(before, peers=peers)


def test_peers_in_a_form_that_cannot_be_added_to(place, airline, take_part):
    _, one = write_card(place)
    path = airline / "consent.toml"
    path.write_text(text := "peers = {}\n")
    rule = "must list its peers below a line [peers]; add these lines: weather = "
    assert rule in refused(*take_part, "--peer", one)
    assert path.read_text() == text


def test_a_pinned_key_is_never_changed(place, airline, take_part):
    """Somebody puts a card of his own in the place of that of a peer.

    As the page says, the party removes the line where the peer has made a new key.
    """
    weather, one = write_card(place)
    assert run(*take_part, "--peer", one).exit_code == 0
    text = (path := airline / "consent.toml").read_text()
    forged, other = write_card(place, "weather", 9)
    sentence = refused(*take_part, "--peer", other)
    for words in (weather.identity, forged.identity, "on the telephone"):
        assert words in sentence
    replace(weather, name="registry").write(renamed := place / "renamed.card")
    sentence = refused(*take_part, "--peer", renamed)
    assert "the key of 'registry' must differ from all other keys" in sentence
    assert path.read_text() == text
    path.write_text(re.sub("(?m)^weather = .*\n", "", text))
    assert run(*take_part, "--peer", other).exit_code == 0
    assert Consent.load(path).peers == {"weather": forged.identity}


def test_a_card_of_ones_own_is_no_peer(place, airline, take_part):
    own = Card.load(path := airline / "airline.card")
    assert "has this party's name" in refused(*take_part, "--peer", path)
    replace(own, name="weather").write(place / "x.card")
    assert "has this party's key" in refused(*take_part, "--peer", place / "x.card")


def test_what_party_refuses(place, airline, take_part):
    _, one = write_card(place)
    assert "must know its peers" in refused(*take_part)
    peer = ("--peer", one)
    ca = take_part[5]
    for superlink in ("https://a:1", "a", "a:0", ":1", "a b:1", "a:x"):
        words = ("--superlink", superlink, "--ca", ca)
        assert "must be HOST:PORT" in refused("party", airline, *words, *peer)
    words = ("--superlink", "a:1", "--ca")
    assert "x.crt: No such file" in refused("party", airline, *words, "x.crt", *peer)
    assert "x.card: No such file" in refused(*take_part, "--peer", "x.card")
    assert "must be a certificate" in refused(
        "party", airline, *words, airline / "party.toml", *peer
    )
    assert "vfl-flower init creates" in refused("party", place, *words, ca, *peer)
    (airline / "consent.toml").chmod(0o666)
    assert "chmod 600" in refused(*take_part, *peer)
    (airline / "consent.toml").chmod(0o600)
    (airline / "supernode.key").unlink()
    assert "supernode.key must be a file that you" in refused(*take_part, *peer)
    (airline / "party.toml").write_text("data = [")
    assert "party.toml: " in refused(*take_part, *peer)
    (airline / "party.toml").write_text('data = "/x.csv"\n')
    assert "party.toml must set party-name" in refused(*take_part, *peer)


# -- systemd ---------------------------------------------------------------------------


def value_of(text, key):
    (value,) = re.findall(rf"(?m)^{key}=(.*)$", text)
    return value


@pytest.mark.second
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a parent")
def test_what_a_command_has_started_ends_with_it_when_it_is_killed(tmp_path):
    """The SuperLink too, which takes a minute to end on SIGTERM while a log is read."""
    code = """if True:
        import signal, sys
        from pathlib import Path
        from vfl_flower.app.deployment.foreground import until_ended
        with until_ended(Path(sys.argv[1])) as shown:
            shown.start("it", ["sh", "-c", "touch it; exec sleep 600"])
            deaf = "trap '' TERM; touch deaf; exec sleep 600"
            shown.start("deaf", ["sh", "-c", deaf], signal.SIGKILL)
            shown.wait()
    """
    home = tmp_path / "flwr"
    command = [sys.executable, "-c", code, str(home)]
    parent = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for name in ("it", "deaf"):
        wait_for((home / name).exists, START, name)
    assert len(started_in(tmp_path)) == 2
    parent.kill()
    parent.wait()
    wait_for(lambda: not started_in(tmp_path), START, "its end")


def commands_of(processes):
    processes._idle.append(commands := _Commands(processes))
    return commands


@pytest.mark.parametrize(
    "start",
    [
        lambda processes: processes.start("it", "sleep", "600"),
        lambda processes: Shown(processes).start("it", ["sleep", "600"]),
        lambda processes: commands_of(processes).process,
    ],
    ids=["daemon", "shown", "for commands of Flower"],
)
def test_what_is_started_heeds_an_interrupt(tmp_path, start):
    """Also where this process ignores it, as in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Processes(tmp_path) as processes:
            started = start(processes)
            started.send_signal(signal.SIGINT)
            assert started.wait(START) != 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_unit_starts_the_same_command(place, airline, federation, take_part):
    _, one = write_card(place)
    done = run(*take_part, "--peer", one)
    text = done.stdout
    assert shlex.split(value_of(text, "ExecStart")) == [
        *(str(Path(sys.executable).with_name("vfl-flower")), "party", str(airline)),
        *("--superlink=link.example:8000", f"--ca={federation / 'ca.crt'}"),
    ]
    assert value_of(text, "Restart") == "on-failure"
    assert int(value_of(text, "RestartSec")) == RESTART
    assert value_of(text, "User") == getpass.getuser()

    card = airline / "airline.card"
    done = run("coordinator", federation, "--card", card, "--systemd")
    assert shlex.split(value_of(done.stdout, "ExecStart"))[1:] == [
        *("coordinator", str(federation), f"--card={card}"),
        *("--port=8000", "--host=0.0.0.0", "--local-port=8001"),
    ]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd")
def test_systemd_takes_a_unit(tmp_path):
    file = tmp_path / "party.service"
    file.write_text(unit('SuperNode of "100 %"', ["party", '/a b/c"d%e$f\\g', "x'y"]))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert "party.service" not in done.stderr, done.stderr


def test_a_party_replaces_its_key(place, airline, take_part):
    """As the page says: it puts new keys and a new card into its folder."""
    old = Card.load(airline / "airline.card")
    _, weather = write_card(place)
    (place / "new").mkdir()
    with chdir(place / "new"):
        assert run("init", "airline", "--data", place / "a b.csv").exit_code == 0
    for file in ("supernode.key", "airline.card", "state/identity.pem"):
        shutil.copy2(place / "new" / "airline" / file, airline / file)
    new = Card.load(airline / "airline.card")
    assert public_identity(airline / "state") == new.identity != old.identity
    assert run(*take_part, "--peer", weather).exit_code == 0
