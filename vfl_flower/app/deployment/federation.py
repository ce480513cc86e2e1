"""The commands that set up a federation.

Each party runs ``init`` and ``party``; the coordinator runs ``certificates`` and
``coordinator``. The commands ``party`` and ``coordinator`` start processes in the
foreground, and stop these processes when the commands end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.hazmat.primitives import hashes

from vfl_flower.app.commands.findings import print_findings, readings_of
from vfl_flower.app.commands.options import (
    absolute,
    check_there,
    node_keys,
    reads_a_file,
)
from vfl_flower.app.deployment.cards import Card, check_name, load_cards
from vfl_flower.app.deployment.certificates import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    read_certificate,
    write_certificates,
)
from vfl_flower.app.deployment.flower_run import wait_for_superlink
from vfl_flower.app.deployment.foreground import Shown, program, unit, until_ended
from vfl_flower.app.deployment.link_state import forget_messages, take_up
from vfl_flower.app.deployment.party_folder import (
    CONSENT,
    NODE_CONFIG,
    SUPERNODE_KEY,
    load_party_folder,
    pin_peers,
    terms_of,
    write_party_folder,
    write_with_data,
)
from vfl_flower.app.deployment.processes import Processes, write_flower_config
from vfl_flower.files import make_private
from vfl_flower.party.consent import Consent
from vfl_flower.protocol.terms import KINDS, LEAST_PARTIES, in_order

CONNECTION = "federation"
"""Name of the SuperLink in the ``config.toml`` that ``coordinator`` writes."""

HOME = "flwr"
"""Flower's own folder (``FLWR_HOME``) in the folder of a party or a coordinator."""

DATABASE = "superlink.sqlite"
"""The SuperLink's database, in Flower's folder."""

Port = Annotated[int, typer.Option(min=1, max=65535, help="Port for SuperNodes.")]
Systemd = Annotated[
    bool, typer.Option("--systemd", help="Print a systemd unit; start nothing.")
]

LOCK = "coordinator.lock"
"""Lock file in a coordinator's folder; it contains the process id and start time."""

WHY_ENDED = {
    "code: 2004": """\
The SuperLink has refused the key of this SuperNode (code 2004), for one of three
reasons. The key is not registered: the coordinator must start with this party's card.
Or this party already runs, in another terminal or on another machine: stop one of the
two. Or an earlier SuperNode of this party was killed: the SuperLink treats a killed
SuperNode as still connected for half a minute, so wait 30 seconds.""",
    "certificate verify failed": """\
The certificate of the SuperLink must be signed by the authority in --ca, for the host
in --superlink; the line with "certificate verify failed" states the problem.""",
    "401 Unauthorized": """\
The SuperLink has dropped this SuperNode, whose key is no longer registered: the
coordinator was started without this party's card, or with a new superlink.sqlite. Ask
the coordinator to start with the card, then start this command again.""",
}
"""Log lines of a SuperNode that stops, and their explanations."""


@reads_a_file
def init(
    name: Annotated[str, typer.Argument(help="Name of the party, and of its folder.")],
    data: Annotated[str, typer.Option(help="The party file, or a DuckDB query.")],
    strategies: Annotated[
        list[str] | None,
        typer.Option("--for", help="Permit what this strategy needs; repeatable."),
    ] = None,
    **options: Any,
) -> None:
    """Check a party file, and write the party's folder NAME with its keys.

    The command stops if the file must be fixed first, or if the folder exists. The
    party gives NAME.card, which is public, to all other members of the federation.
    """
    config = node_keys(data, **options)
    chosen = list(dict.fromkeys(strategies or []))
    check_name(name)
    check_there(data)
    if os.path.lexists(name):
        raise ValueError(
            f"{name} exists, and init does not replace it: edit its {NODE_CONFIG} or "
            f"{CONSENT}, or choose another name"
        )
    terms = {strategy: terms_of(strategy) for strategy in chosen}
    readings = readings_of(config, chosen)
    print_findings(readings, show=False)
    if not all(checked.sound for checked, _ in readings):
        raise ValueError("nothing was written: the file must be fixed first")
    kinds = in_order(kind for asked in terms.values() for kind in asked.needs)
    card = write_party_folder(Path(name), config, kinds)
    typer.echo(
        f"\nWritten, readable only by you: {name}/\n"
        f"  {NODE_CONFIG:13}  how the SuperNode reads the data\n"
        f"  {CONSENT:13}  what may leave this party, and with whom it joins runs\n"
        f"  {SUPERNODE_KEY:13}  the key of the SuperNode: keep a copy of it\n"
        f"  state/         the key of the party, identity.pem: keep a copy of it\n\n"
        f"{name}/{name}.card is public: give it to the coordinator and all parties.\n"
    )
    for strategy, asked in terms.items():
        typer.echo(f"{CONSENT} permits, without limits, what {strategy} needs:")
        if not asked.needs:
            typer.echo("  nothing but sums over three or more parties")
        for kind in asked.needs:
            typer.echo(f"  {kind}: {KINDS[kind]}")
        typer.echo(f"  {asked.less}.\n" if asked.less else "")
    if not chosen:
        typer.echo(
            f"{CONSENT} only permits sums over three or more parties: most runs need "
            "more (see its [leaves]).\n"
        )
    typer.echo("Fingerprint of the card, to be compared on the telephone:")
    typer.echo(f"  {card.fingerprint}")


def certificates(
    hosts: Annotated[
        list[str],
        typer.Argument(
            metavar="HOST...", help="The SuperLink's names or addresses for parties."
        ),
    ],
    folder: Annotated[
        Path, typer.Option(help="Output folder; created if missing.")
    ] = Path("federation"),
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="Days until expiry.")
    ] = 365,
) -> None:
    """Write a SuperLink's certificate, and an authority that signs nothing else."""
    names = list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"]))
    if (folder / KEY).exists():
        raise ValueError(
            f"{folder} already has certificates, which are not replaced: choose "
            "another --folder"
        )
    write_certificates(folder, names, days)
    typer.echo(
        f"Written to {folder}/, for {', '.join(names)}, valid for {days} days:\n"
        f"  {AUTHORITY:10}  give this file to all parties\n"
        f"  {CERTIFICATE:10}  stays here\n"
        f"  {KEY:10}  stays here; keep it secret\n\n"
        f"Fingerprint of {AUTHORITY}, to be compared on the telephone:\n"
        f"  {fingerprint_of(folder / AUTHORITY)}"
    )


def fingerprint_of(certificate: Path) -> str:
    """Return 32 digits of a certificate's SHA-256; errors as in `read_certificate`."""
    digest = read_certificate(certificate).fingerprint(hashes.SHA256())
    return " ".join(re.findall("....", digest.hex()[:32]))


def superlink_command(folder: Path, port: int) -> list[str]:
    """Return the command of a SuperLink that only its own machine can reach."""
    return [
        "flower-superlink",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--ssl-ca-certfile={folder / AUTHORITY}",
        f"--ssl-certfile={folder / CERTIFICATE}",
        f"--ssl-keyfile={folder / KEY}",
        "--enable-supernode-auth",
        "--disable-runtime-dependency-installation",
        "--isolation=process",  # server_executor_command starts the ServerApps
        f"--database={folder / HOME / DATABASE}",
    ]


def server_executor_command(folder: Path, port: int, superlink: int) -> list[str]:
    """Return the command that starts a SuperLink's ServerApps, given its process id."""
    options = [f"--superlink=127.0.0.1:{port}", f"--parent-pid={superlink}"]
    options.append(f"--root-certificates={folder / AUTHORITY}")
    return [sys.executable, "-m", "vfl_flower.app.deployment.server_executor", *options]


def gate_command(folder: Path, host: str, port: int, superlink: int) -> list[str]:
    """Return the command of the gate through which SuperNodes reach a SuperLink."""
    module = "vfl_flower.app.deployment.gate"
    options = [f"--host={host}", f"--port={port}", f"--superlink={superlink}"]
    return [sys.executable, "-m", module, str(folder), *options]


def write_connection(folder: Path, port: int, home: Path) -> None:
    """Write a ``config.toml`` for ``flwr`` with the SuperLink at a local port."""
    options = {"root-certificates": str(folder / AUTHORITY)}
    write_flower_config(home, CONNECTION, port, options)


def coordinator(
    folder: Annotated[Path, typer.Argument(help="Folder of the certificates.")],
    cards: Annotated[
        list[Path], typer.Option("--card", help="Card of a party; repeatable.")
    ],
    port: Port = 8000,
    host: Annotated[str, typer.Option(help="Address for SuperNodes.")] = "0.0.0.0",
    local_port: Annotated[
        int,
        typer.Option(
            min=1, max=65535, help="Port of the SuperLink, on this machine only."
        ),
    ] = 8001,
    systemd: Systemd = False,
) -> None:
    """Start a SuperLink, and register the SuperNodes of the parties' cards.

    The command runs until Ctrl-C or SIGTERM. Runs can be started only on this machine.
    """
    folder = folder.absolute()
    parties = load_cards(cards)
    for name in (AUTHORITY, CERTIFICATE, KEY):
        if not os.access(folder / name, os.R_OK):
            raise ValueError(
                f"{folder / name} must be a file that you can read, as written by "
                "vfl-flower certificates"
            )
    for name in (AUTHORITY, CERTIFICATE):
        read_certificate(folder / name)
    if port == local_port:
        raise ValueError(f"port and local-port must differ, got {port} twice")
    if systemd:
        options = [f"--card={card.absolute()}" for card in cards]
        options += [f"--port={port}", f"--host={host}"]
        command = ["coordinator", str(folder), *options]
        typer.echo(unit("SuperLink", [*command, f"--local-port={local_port}"]))
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(folder))
        for where, number in ((host, port), ("127.0.0.1", local_port)):
            _check_free(where, number)
        stack.callback(forget_messages, folder / HOME / DATABASE)
        shown = stack.enter_context(until_ended(folder / HOME))
        _start_superlink(shown, folder, local_port, parties)
        # Only now: a SuperNode whose key is not yet registered would give up.
        shown.start("the gate", gate_command(folder, host, port, local_port))
        typer.echo(
            f"\nSuperNodes connect to port {port}. Runs are started on this "
            f"machine:\n\n    vfl-flower run STRATEGY --federation "
            f"{shlex.quote(str(folder))}\n"
        )
        shown.wait()


def _start_superlink(
    shown: Shown, folder: Path, port: int, cards: Sequence[Card]
) -> None:
    """Start a SuperLink and the starter of its ServerApps; register SuperNodes."""
    for card in cards:
        typer.echo(f"card of {card.name}: {card.fingerprint}")
    home = folder / HOME
    write_connection(folder, port, home)
    known = take_up(home / DATABASE, [card.supernode_pem for card in cards])
    command = superlink_command(folder, port)
    # After SIGTERM the SuperLink would no longer answer, and commands that follow a run
    # would wait a minute for the run's log.
    link = shown.start("the SuperLink", command, signal.SIGKILL)
    wait_for_superlink(link, port, folder / AUTHORITY)
    starter = server_executor_command(folder, port, link.pid)
    shown.start("the starter of the ServerApps", starter)
    for card in cards:
        if card.supernode_pem not in known:
            register(shown.processes, card)
        typer.echo(f"registered {card.name}")
    shown.processes.no_more_commands()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a coordinator's folder; raise ValueError if it is already locked."""
    make_private(folder / LOCK)
    with (folder / LOCK).open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = file.readline().strip() or "another process"
            raise ValueError(
                f"folder {folder} already has a running coordinator ({holder}): stop "
                "it first, or use another folder"
            ) from None
        file.truncate(0)
        since = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
        print(f"process {os.getpid()} since {since}", file=file, flush=True)
        yield


def register(processes: Processes, card: Card) -> None:
    """Register the SuperNode of a card; raise RunFailed if the key is not accepted."""
    public = processes.home / "supernode.pub"  # flwr only reads keys from files
    public.write_text(f"{card.supernode}\n")
    options = (str(public), CONNECTION, "--name", card.name)
    processes.flwr("supernode", "register", *options)
    public.unlink()


def _check_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"port {port} of {host} must be free: {error.strerror}; choose "
                "other ports with --port and --local-port"
            ) from None


def supernode_command(
    folder: Path,
    superlink: str,
    ca: Path,
    bundles: Sequence[str] = (),
    node_config: Path | None = None,
) -> list[str]:
    """Return the command of a party's SuperNode, with the folder's node config."""
    return [
        *program(),
        "supernode",
        *(f"--bundle={digest}" for digest in bundles),
        f"--superlink={superlink}",
        f"--root-certificates={ca}",
        f"--auth-supernode-private-key={folder / SUPERNODE_KEY}",
        f"--node-config={node_config or folder / NODE_CONFIG}",
    ]


def _print_peers(
    consent: Consent, cards: Sequence[Card], ca: Path, *, err: bool
) -> None:
    """Print the party's peers and fingerprints; raise ValueError if it has no peers."""
    pinned, least = consent.peers or {}, consent.least_parties
    if not pinned and not consent.trust_on_first_use:
        raise ValueError(
            "the party must know its peers: add the card of each peer with --peer"
        )
    for name, key in pinned.items():
        typer.echo(f'pinned: {name} = "{key}"', err=err)
    for card in cards:
        typer.echo(f"card of {card.name}: {card.fingerprint}", err=err)
    typer.echo(
        f"{ca.name}: {fingerprint_of(ca)}\n"
        "Compare these fingerprints on the telephone before the first run.",
        err=err,
    )
    if len(pinned) + 1 < least and not consent.trust_on_first_use:
        two = ""
        if (len(pinned), least) == (1, LEAST_PARTIES):
            two = "; for two parties, see two-parties there"
        typer.echo(
            f"Note: the number of pinned peers is {len(pinned)}, but {CONSENT} "
            f"requires at least {least} parties in a run{two}.",
            err=True,
        )


def party(
    folder: Annotated[Path, typer.Argument(help="Folder that init has written.")],
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the coordinator.")],
    ca: Annotated[Path, typer.Option(help="ca.crt of the coordinator.")],
    peers: Annotated[
        list[Path] | None,
        typer.Option("--peer", help="Card of another party; repeatable."),
    ] = None,
    data: Annotated[
        str, typer.Option(help="A data file for this start only, such as new rows.")
    ] = "",
    bundles: Annotated[
        list[str] | None,
        typer.Option("--bundle", metavar="HASH", help="Allow this bundle; repeatable."),
    ] = None,
    systemd: Systemd = False,
) -> None:
    """Pin the keys of the other parties, and start this party's SuperNode.

    The command runs until Ctrl-C or SIGTERM. Pinned peers need not be named again.
    """
    folder, ca = folder.absolute(), ca.absolute()
    if not re.fullmatch(r"[^\s:/]+:[1-9]\d{0,4}", superlink):
        raise ValueError(
            f"superlink must be HOST:PORT, without https://, got {superlink[:60]!r}"
        )
    read_certificate(ca)
    source, consent = load_party_folder(folder)
    if data:
        check_there(data)
    if not os.access(folder / SUPERNODE_KEY, os.R_OK):
        raise ValueError(f"{folder / SUPERNODE_KEY} must be a file that you can read")
    cards = load_cards(peers or [])
    consent = pin_peers(source, consent, cards)
    _print_peers(consent, cards, ca, err=systemd)
    if systemd:
        options = [f"--superlink={superlink}", f"--ca={ca}"]
        options += [f"--bundle={digest}" for digest in bundles or []]
        options += [f"--data={absolute(data)}"] if data else []
        command = ["party", str(folder), *options]
        typer.echo(unit(f"SuperNode of {source.name}", command))
        return
    with until_ended(folder / HOME) as shown:
        node_config = write_with_data(folder, absolute(data)) if data else None
        command = supernode_command(folder, superlink, ca, bundles or [], node_config)
        typer.echo(
            f"Connecting to {superlink}. The SuperNode tries again until a SuperLink "
            "answers."
        )
        shown.start("the SuperNode", command)
        shown.wait(WHY_ENDED)
