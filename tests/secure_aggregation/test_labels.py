"""No two uses of a secret share a label, and all labels are in one place."""

import ast
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import vfl_flower
from vfl_flower.secure_aggregation import labels, masks, relay
from vfl_flower.secure_aggregation.groups import Ring
from vfl_flower.secure_aggregation.keys import public_key
from vfl_flower.secure_aggregation.masks import PairwiseMasks, masked
from vfl_flower.secure_aggregation.relay import Relay

LABELS = {name: value for name, value in vars(labels).items() if name.isupper()}

ROOT = Path(vfl_flower.__file__).parent

SOURCES = [path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")]

CONTEXT = ("agreed", "", 0)


@pytest.fixture
def derived(monkeypatch):
    calls = []

    def derive_key(secret, parts, derive=masks.derive_key):
        calls.append((secret, list(parts), derive(secret, parts)))
        return calls[-1][2]

    monkeypatch.setattr(masks, "derive_key", derive_key)
    monkeypatch.setattr(relay, "derive_key", derive_key)
    return calls


def test_each_use_of_a_pair_of_keys_has_a_label_and_a_key_of_its_own(derived):
    private = [bytes([k]) * 32 for k in (1, 2)]
    args = private[0], list(map(public_key, private)), 0, 42
    masked(np.zeros(1), Ring(2.0, 2), PairwiseMasks(*args), *CONTEXT)
    Relay(*args).seal(1, b"", *CONTEXT)
    Relay(*args).agree(1)
    secrets, parts, keys = zip(*derived, strict=True)
    assert len(set(secrets)) == 1
    names = labels.PAIRWISE_MASK, labels.RELAYED_MESSAGE, labels.AGREED_SECRET
    assert tuple(first for first, *_ in parts) == names
    assert len(set(keys)) == 3


def test_labels_differ_and_have_a_version():
    assert len(set(LABELS.values())) == len(LABELS) > 10
    for label in LABELS.values():
        assert re.fullmatch(rb"vfl_flower [a-z ]+ [1-9]", label)


def test_no_key_has_its_label_from_elsewhere():
    for text in SOURCES:
        if not re.search(r"\b(derive_key|stream)\(", text):
            continue
        for node in ast.walk(ast.parse(text)):
            called = isinstance(node, ast.Call) and ast.unparse(node.func)
            if called and re.search(r"\b(derive_key|stream)$", called):
                literals = [n for n in ast.walk(node) if isinstance(n, ast.Constant)]
                assert not [n for n in literals if isinstance(n.value, bytes)]


def test_each_label_has_one_use():
    used = Counter(re.findall(r"\blabels\.([A-Z_]+)\b", "\n".join(SOURCES)))
    assert used == dict.fromkeys(LABELS, 1)
