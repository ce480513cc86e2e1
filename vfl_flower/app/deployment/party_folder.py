"""The folder of a party: its node config, its consent, its keys and its card.

``vfl-flower init`` writes the folder whole or not at all, and never replaces a folder,
since the other parties know the party by its keys.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import tomli_w

from vfl_flower.app.config import (
    UserConfig,
    check_run_config,
    make_strategy,
    party_source,
    with_data,
)
from vfl_flower.app.deployment.cards import Card
from vfl_flower.app.deployment.certificates import write_supernode_key
from vfl_flower.app.plan.rehearsal import quietly
from vfl_flower.data.source import PartySource
from vfl_flower.files import write_whole
from vfl_flower.party.consent import Consent
from vfl_flower.party.identity import public_identity
from vfl_flower.protocol.errors import PartyError
from vfl_flower.protocol.terms import KINDS, Kind, Terms
from vfl_flower.strategies import algorithms

NODE_CONFIG, CONSENT, STATE, SUPERNODE_KEY = (
    *("party.toml", "consent.toml", "state", "supernode.key"),
)
"""Files in the folder of a party, besides its card."""

_HOW_TO_READ = """\
# How the SuperNode of this party finds and reads its data. The SuperNode reads this
# file when it starts. docs/party-files.md lists all keys.
"""

_RULES = """\
# Runs that this party joins, and values that may leave it. Missing keys have the values
# written here. Lines that begin with "#" are examples of keys that are not set.

# strategies = {strategies}  # permit only these strategies; default: all
# tasks = ["train", "predict"]  # permit only these tasks; default: all
min-parties = 3             # minimum number per run: 3 or more (two-parties permits 2)
two-parties = false         # true: also join runs with only one other party, which can
                            # then compute this party's contribution to each sum that
                            # the other party learns
# dealers = ["server"]      # who may generate the randomness for products of secret
                            # shares: "server", or names of parties; default: the
                            # server, but only in runs with three or more parties
# computes = ["weather"]    # parties that may compute such products with the label
                            # holder; default: the first party besides label holder
                            # and dealer
# changed-parties = ["lab"] # parties that may join or leave between two sums over the
                            # same rows; the two sums reveal these parties' contribution
allow-seed = false          # true: also join runs whose seed the server knows; the
                            # server can then repeat this party's random draws
trust-on-first-use = false  # true: if a party has no line in [peers], pin that party's
                            # key in its first run; the server can then invent a party
column-names = false        # true: if parties hold different rows, send the server
                            # column names, not only their digests
# max-round-trips = 100     # maximum number of messages to answer in one run
# max-bytes = 1000000000    # maximum total size of the replies in one run, in bytes
max-refusals = 100          # number of refusals, over all runs, after which the party
                            # stops answering
min-changed-rows = 20       # if two sums are over different row sets, the minimum
                            # number of rows by which the sets must differ: the
                            # difference between the sums reveals the sum of these rows
# most-row-sets = 50        # maximum number of different row sets with sums, over all
                            # runs; default: a twentieth of the rows, at least 30
# accept-alignments = ["server"]  # use row orders from "align" without requiring
                            # 'vfl-flower align --accept'

[leaves]  # false: none; true: any number; {{ run = 2000, life = 10000 }}: at most these
          # numbers of rows (totals, coefficients, curves: of disclosures; moments: of
          # columns), in one run and in all runs together
"""


def consent_text(kinds: Collection[Kind] = ()) -> str:
    """Return a ``consent.toml`` with default values that permits these kinds."""
    lines = [
        f"{kind} = {'true' if kind in kinds else 'false'}".ljust(28) + f"# {words}\n"
        for kind, words in KINDS.items()
    ]
    rules = _RULES.format(strategies=json.dumps([*algorithms()][:2]))
    return f"{rules}{''.join(lines)}\n[peers]\n"


def terms_of(strategy: str) -> Terms:
    """Return the terms of a strategy; raise ValueError if the strategy is unknown."""
    return make_strategy(check_run_config({"strategy": strategy})).terms


def write_party_folder(
    folder: Path, config: UserConfig, kinds: Collection[Kind]
) -> Card:
    """Write the folder of a new party, whole or not at all; return its card.

    The folder's name is the party's name; values of `kinds` may leave the party.
    """
    folder = folder.absolute()
    name = folder.name
    full = {
        **config,
        "party-name": name,
        "state-dir": str(folder / STATE),
        "consent": str(folder / CONSENT),
    }
    part = folder.with_name(f".{name}.{secrets.token_hex(4)}.part")
    part.mkdir(mode=0o700)
    try:
        node_config = _HOW_TO_READ + tomli_w.dumps(full)
        write_whole(part / NODE_CONFIG, node_config.encode(), private=True)
        write_whole(part / CONSENT, consent_text(kinds).encode(), private=True)
        key = write_supernode_key(part / SUPERNODE_KEY)
        with quietly():
            identity = public_identity(part / STATE)
        card = Card(name, identity, key)
        card.write(part / f"{name}.card")
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return card


def load_party_folder(folder: Path) -> tuple[PartySource, Consent]:
    """Return a party's source and consent; raise ValueError for an invalid file."""
    path = folder / NODE_CONFIG
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
        source = party_source(config, {})
    except OSError as error:
        hint = "; vfl-flower init creates a party's folder"
        raise ValueError(f"{path} cannot be read: {error.strerror}{hint}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for key, value in (
        ("party-name", source.name),
        ("consent", source.consent),
        ("state-dir", source.state_dir),
    ):
        if value is None:
            raise ValueError(f"{path} must set {key}")
    assert source.consent is not None
    try:
        return source, Consent.load(source.consent)
    except PartyError as error:
        raise ValueError(f"{source.consent}: {error}") from None


def write_with_data(folder: Path, data: str) -> Path:
    """Write a second node config, for another data file; return its path."""
    config = with_data(tomllib.loads((folder / NODE_CONFIG).read_text("utf-8")))
    path = folder / f"other-data{Path(NODE_CONFIG).suffix}"
    text = _HOW_TO_READ + tomli_w.dumps(config | {"data": data})
    write_whole(path, text.encode(), private=True)
    return path


def pin_peers(source: PartySource, consent: Consent, cards: Sequence[Card]) -> Consent:
    """Add the keys of peers to a party's ``consent.toml``, and return its consent.

    No pinned key is changed. Raises ValueError if a card is the party's own or
    contradicts a pinned key, or if the file lists its peers in a form that cannot be
    extended. Raises PartyError if the party's own key cannot be used.
    """
    assert source.consent is not None
    assert source.state_dir is not None
    pinned, path = dict(consent.peers or {}), source.consent
    with quietly():
        identity = public_identity(source.state_dir)
    for card in cards:
        if source.name == card.name or identity == card.identity:
            raise ValueError(
                f"a peer must be another party, but the card of {card.name!r} has this "
                f"party's {'name' if source.name == card.name else 'key'}"
            )
        if (before := pinned.get(card.name, card.identity)) != card.identity:
            raise ValueError(
                f"the card of {card.name!r} must have the key that {path} pins, "
                f"{before}, but it has {card.identity}: ask that party on the "
                "telephone, and change the line only if that party has a new key"
            )
        for name, key in pinned.items():
            if key == card.identity and name != card.name:
                raise ValueError(
                    f"the key of {card.name!r} must differ from all other keys, but "
                    f"{path} also pins it for {name!r}"
                )
    new = {card.name: card.identity for card in cards if card.name not in pinned}
    if new:
        text = path.read_text(encoding="utf-8-sig")
        write_whole(path, _with_peers(text, new, path).encode(), private=True)
    return replace(consent, peers=pinned | new)


def _with_peers(text: str, new: Mapping[str, str], path: Path) -> str:
    """Return the text of a ``consent.toml`` with more lines in its table of peers."""
    lines = tomli_w.dumps(new)
    header = re.compile(r"(?m)^[ \t]*\[[ \t]*peers[ \t]*\][^\n]*$")
    if "peers" not in (before := tomllib.loads(text)):
        added = f"{text.rstrip()}\n\n[peers]\n{lines}"
    else:
        added = header.sub(lambda match: f"{match[0]}\n{lines}".rstrip(), text, count=1)
    expected = before | {"peers": {**before.get("peers", {}), **new}}
    with suppress(tomllib.TOMLDecodeError):
        if tomllib.loads(added) == expected:
            return added
    raise ValueError(
        f"{path} must list its peers below a line [peers]; add these lines: "
        f"{'; '.join(lines.splitlines())}"
    )
