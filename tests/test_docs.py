"""What the documents say is so: examples run, commands, keys, files and links exist."""

import ast
import importlib
import importlib.util
import inspect
import pydoc
import re
import subprocess
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
import typer
from flwr.cli.flower_config import read_superlink_connection
from flwr.clientapp import ClientApp
from flwr.common.config import parse_config_args
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode
from pages import PAGES, ROOT, commands, examples, options
from typer.testing import CliRunner
from wiring.handshake import check_supernode_key

import vfl_flower as vf
from docs import figures, tables
from vfl_flower.app.commands import cli
from vfl_flower.app.commands.runs import gather
from vfl_flower.app.config import (
    check_run_config,
    make_strategy,
    party_source,
    run_keys,
)
from vfl_flower.app.deployment.federation import write_connection
from vfl_flower.app.deployment.party_folder import consent_text, terms_of
from vfl_flower.app.plan.rehearsal import rehearse
from vfl_flower.app.report.page import WORDS
from vfl_flower.party.consent import Consent, Limit
from vfl_flower.protocol.settings import settings_of
from vfl_flower.protocol.steps import STEPS
from vfl_flower.protocol.terms import KINDS
from vfl_flower.server.exchange import Exchange
from vfl_flower.server.parties import Parties
from vfl_flower.simulation import InProcessGrid
from vfl_flower.strategies import algorithms

LINEAR = {"coresets", "linear", "linear_gram", "products", "coreset_predictions"}
PAPERS = {"coresets": LINEAR, "ridge": {"ridge", "products"}}
PAPERS |= {name: {name} for name in ("fdskl", "kernel_kmeans", "mufc")}
"""Pages of papers, and the modules of their steps."""


def parametrise(name: str, actual: dict[str, Any]) -> pytest.MarkDecorator:
    """Return one case for each page, or line of a page, that there is."""
    assert actual
    return pytest.mark.parametrize(name, actual.values(), ids=actual.keys())


# -- examples --------------------------------------------------------------------------


def run(code: str, page: str, names: dict[str, Any]) -> None:
    """Run an example; where a comment behind an expression is a value, compare it."""
    lines = code.splitlines()
    for statement in ast.parse(code).body:
        text = "\n".join(lines[statement.lineno - 1 : statement.end_lineno])
        _, _, comment = text.partition("  # ")
        if not isinstance(statement, ast.Expr):
            exec(compile(ast.Module([statement], []), page, "exec"), names)
            continue
        value = eval(compile(ast.Expression(statement.value), page, "eval"), names)
        if told := re.match(r"[-\d., ]+(?=$|:)", comment):
            assert value == ast.literal_eval(told[0]), text


EXCERPTS = {
    "docs/tutorials/existing-app.md": "existing_app",
    "docs/tutorials/fifth-algorithm.md": "fifth_algorithm",
}
"""Tutorials, and the example whose files they show, which tests/examples run."""

ELSEWHERE = {"docs/contribute.md", "docs/tutorials/three-files.md"}
"""Pages whose examples need data that the tests do not have, or run below."""


@pytest.mark.parametrize(
    "page", [p for p in PAGES if examples(p) and p not in ELSEWHERE | EXCERPTS.keys()]
)
def test_examples_run(page, tmp_path, monkeypatch, capsys):
    """One after the other, as one would type them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kc_house.csv").write_text("a,b,price\n1,2,3\n4,5,6\n")
    pd.DataFrame({"distance": [1.0, 2], "delay": [3.0, 4]}).to_parquet(
        tmp_path / "airline.parquet"
    )
    names: dict[str, Any] = {}
    for code in examples(page):
        run(re.sub(r'(f?")/(tmp|data)/', rf"\1{tmp_path}/", code), page, names)
    assert names
    if page == "README.md":
        assert f"```text\n{capsys.readouterr().out}```" in PAGES[page]


def test_the_check_of_the_tutorial(tmp_path, monkeypatch):
    """The page shows the whole output."""
    page, names = "docs/tutorials/three-files.md", {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for code in examples(page):
        run(code, page, names)
    words = next(
        w for w in commands("vfl-flower check").values() if "laboratory" in w[2]
    )
    shown = CliRunner().invoke(cli.app, words[1:]).output
    text = "\n".join(line.rstrip() for line in shown.splitlines())
    assert f"```text\n{text}\n```" in PAGES[page]


@pytest.mark.parametrize("page", EXCERPTS)
def test_excerpts_are_of_the_examples(page):
    """All blocks, but for the one that runs below and the consent."""
    folder = ROOT / "examples" / EXCERPTS[page]
    texts = [p.read_text() for p in (*folder.rglob("*.py"), folder / "pyproject.toml")]
    shown = re.findall(r"(?ms)^```(?:python|toml)\n(.*?)^```", PAGES[page])
    actual = [one for one in shown if "simulate(" not in one and "[peers]" not in one]
    assert len(actual) >= 2
    for block in actual:
        assert any(block.strip("\n") in text for text in texts), block


def test_the_fifth_algorithm_runs(monkeypatch):
    page = "docs/tutorials/fifth-algorithm.md"
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "fifth_algorithm"))
    (code,) = [one for one in examples(page) if "simulate(" in one]
    try:
        run(code, page, {})
    finally:
        STEPS.pop("pca_moments", None)
        for name in [name for name in sys.modules if name.startswith("fifth_alg")]:
            del sys.modules[name]


def test_own_apps_run(tmp_path):
    """A strategy on a ClientApp with a loader of one's own; parties have no index."""
    app = ClientApp()

    def load(context):
        config = context.node_config
        consent, state_dir = Consent.load(config["consent"]), Path(config["state-dir"])
        rules = {"name": config["owner"], "state_dir": state_dir, "consent": consent}
        with np.load(config["table"]) as file:
            return vf.Party(file["X"], y=file.get("y"), **rules)

    vf.register(app, load)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 6))
    blocks = [{"X": X[:, :2]}, {"X": X[:, 2:4]}, {"X": X[:, 4:], "y": X.sum(axis=1)}]
    grid = InProcessGrid([vf.Party(X)] * 3)
    for context, block, owner in zip(
        grid._contexts.values(), blocks, "cab", strict=True
    ):
        context.node_config = {
            "table": str(tmp_path / f"{owner}.npz"),
            "owner": owner,
            "state-dir": str(tmp_path / owner),
            "consent": str(tmp_path / "consent.toml"),
        }
        np.savez(context.node_config["table"], **block)
    consent = tmp_path / "consent.toml"
    consent.touch(mode=0o600)
    text = demo_consent()  # without peers
    consent.write_text(re.sub("(?m)^(trust-on-first-use) = false", r"\1 = true", text))
    grid._app = app
    result = vf.CoresetVRLR(size=2000).start(grid)
    assert {entry.party for entry in result.ledger.entries.values()} == set("abc")
    np.testing.assert_allclose(np.concatenate(result.model.coef_), np.ones(6))


def demo_consent(name: str = "airline") -> str:
    """Return the consent.toml that docs/deploy.md has ``vfl-flower init`` write."""
    words = commands(f"vfl-flower init {name}")["docs/deploy.md-0"]
    (strategy,) = options(words, "--for")
    return consent_text(terms_of(strategy).needs)


@pytest.mark.parametrize(("name", "n"), [("airline", 3), ("bank", 2)])
def test_the_consent_of_init_is_enough_for_the_runs_that_follow(name, n):
    """Of two parties with the lines that the page has them change."""
    text, (lines,) = demo_consent(name), toml_blocks("docs/deploy.md", "two-parties")
    for line in lines.splitlines() * (n == 2):
        text = re.sub(rf"(?m)^(# )?{line.split()[0]} = .*", line, text)
    consent, every = Consent.parse(tomllib.loads(text)), commands("vfl-flower run")
    runs = [every[p] for p in every if "deploy" in p and f"n-parties={n}" in every[p]]
    assert len(runs) >= 2
    for words in runs:
        given = gather(words[2], "train", options(words, "--set"))
        strategy = make_strategy(check_run_config(given))
        terms = replace(strategy.terms, seeded=strategy.seed is not None, parties=n)
        assert consent.lacks(terms) == [], words


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that makes code the module ``walk.coresets``."""

    def load(code: str) -> ModuleType:
        file = tmp_path / "coresets.py"
        file.write_text(code)
        spec = importlib.util.spec_from_file_location("walk.coresets", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


def test_walk_that_adds_a_setting(load):
    (fenced,) = re.findall(r"(?s)   ```text\n(.*?)   ```", PAGES["docs/contribute.md"])
    field = textwrap.indent(textwrap.dedent(fenced), "    ")
    head = """from vfl_flower import CoresetVKMC
from vfl_flower.protocol.settings import Natural, settings


@settings
class Changed(CoresetVKMC):
"""
    changed = load(head + field).Changed
    (setting,) = [s for s in settings_of(changed) if s.name == "max_iter"]
    assert (setting.key, setting.default) == ("max-iter", 300)
    assert setting.text == "Maximum number of passes of the server's k-means."
    with pytest.raises(ValueError, match=r"max_iter .* at least 1, got 0"):
        changed(max_iter=0)


def test_walk_that_adds_a_step(load):
    page = "docs/contribute.md"
    declared, asked = examples(page)
    action = "coresets_row_means"
    assert f"`{action}`" in PAGES[page]
    followed = STEPS.pop(action, None)  # by a reader who tries the walk
    try:
        party = load(declared)
        X = np.arange(12.0).reshape(4, 3)
        grid = InProcessGrid([vf.Party(X), vf.Party(2 * X)])
        names = {"party": party, "rows": np.array([0, 3, 3])}
        names["parties"] = Parties(Exchange(grid), seed=0)
        run(asked, page, names)
        np.testing.assert_allclose(names["total"], 3 * X[names["rows"]].mean(axis=1))
        assert STEPS[action] is party.row_means
    finally:
        STEPS.pop(action, None)
        STEPS.update({action: followed} if followed else {})


# -- commands --------------------------------------------------------------------------


@parametrise("words", commands("python"))
def test_commands_are_understood(words):
    """By the parser of the module, which checks options and choices."""
    if words[1] == "make_files.py":  # that the tutorial has the reader write
        return
    if words[1] != "-m":
        assert (ROOT / words[1]).is_file()
        source = (ROOT / words[1]).read_text()
        assert all(f'"{word}"' in source for word in words[2:] if word[:2] == "--")
        return
    name, arguments = words[2], words[3:]
    if name == "venv":  # of Python itself
        return
    app = importlib.import_module(name).app
    typer.main.get_command(app).make_context(name, arguments)


def test_flower_takes_the_key_of_a_supernode(tmp_path):
    """Of the command as it stands in docs/deploy.md."""
    (words,) = commands("ssh-keygen").values()
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    check_supernode_key(tmp_path / "airline.key")


CLIS = {"vfl-flower": "vfl_flower.app.commands.cli", "flwr": "flwr.cli.app"}
"""Programs, and the modules of their commands."""


@parametrise("words", commands("flower-superlink") | commands("flower-supernode"))
def test_commands_of_a_deployment_are_understood(words):
    parsers = {
        "flower-superlink": _parse_args_run_superlink,
        "flower-supernode": _parse_args_run_supernode,
    }
    parsers[words[0]]().parse_args(words[1:])


@parametrise("words", {" ".join(w): w for p in CLIS for w in commands(p).values()})
def test_commands_of_command_lines_are_understood(words):
    with warnings.catch_warnings(action="ignore"):  # of typer, about flwr's options
        command = typer.main.get_command(importlib.import_module(CLIS[words[0]]).app)
    context = command.make_context(words[0], words[1:])
    while isinstance(context.command, click.Group):
        called = [*context._protected_args, *context.args]
        _, command, arguments = context.command.resolve_command(context, called)
        context = command.make_context(words[0], arguments, parent=context)


def toml_blocks(page: str, key: str) -> list[str]:
    """Return the TOML in a page that has a key or table."""
    blocks = re.findall(r"(?s)```toml\n(.*?)```", PAGES[page])
    return [block for block in blocks if f"\n{key}" in f"\n{block}"]


def test_superlinks_of_config_toml_are_understood(tmp_path, monkeypatch):
    """Under the name that ``flwr run`` is given, as the coordinator writes it."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    (block,) = toml_blocks("docs/deploy.md", "[superlink]")
    write_connection(Path("/srv/federation"), 8001, home=tmp_path)
    assert tomllib.loads(block) == tomllib.loads((tmp_path / "config.toml").read_text())
    connection = read_superlink_connection("federation")
    assert connection.address == "127.0.0.1:8001"
    assert not connection.insecure


def test_make_has_the_targets():
    targets = {words[1] for words in commands("make").values()}
    assert targets <= {*re.findall("(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())}


@parametrise("words", commands("flwr run") | commands("vfl-flower simulate-app"))
def test_run_configs_make_a_strategy(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    given = options(words, "--run-config")
    make_strategy(check_run_config(parse_config_args(given) if given else {}))


@parametrise("words", commands("vfl-flower run"))
def test_settings_of_runs_make_a_strategy(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"(?m)^    (\S+ = .+, .+)$", PAGES["docs/mufc.md"])
    Path("bounds.txt").write_text("\n".join(lines))
    task = [*options(words, "--task"), "train"][0]
    make_strategy(check_run_config(gather(words[2], task, options(words, "--set"))))


def test_demo_config_makes_a_strategy():
    config = parse_config_args([str(ROOT / "simulations/flights.toml")])
    strategy = make_strategy(check_run_config(config))
    assert (strategy.n_parties, strategy.size) == (3, 2000)


# -- keys ------------------------------------------------------------------------------


def first_column(page: str, header: str) -> list[str]:
    """Return the keys in the first column of the table under a header."""
    rows = PAGES[page].split(header, 1)[1].split("\n\n", 1)[0].splitlines()
    cells = [row.split(" | ")[0] for row in rows if row.startswith("`")]
    return [key for cell in cells for key in re.findall(r"`([^`]+)`", cell)]


NODE_KEYS = first_column("docs/party-files.md", "key of the node config | meaning")


def test_node_config_keys_are_read():
    expected = {
        "data": ("/a.csv", "data", "/a.csv"),
        "data-path": ("/a.csv", "data", "/a.csv"),
        "party-name": ("a", "name", "a"),
        "partition-id": (1, "index", 1),
        "columns": ("a,b", "columns", ("a", "b")),
        "id-column": ("i", "id_column", "i"),
        "label-column": ("l", "label_column", "l"),
        "impute": ("mean", "impute", "mean"),
        "standardize": (True, "standardize", True),
        "one-hot": (False, "one_hot", False),
        "consent": ("/var/c", "consent", Path("/var/c")),
        "state-dir": ("/var/a", "state_dir", Path("/var/a")),
        "alignment": ("q4", "alignment", "q4"),
        "missing": ("?", "missing", ("?",)),
        "max-levels": (5, "max_levels", 5),
        "levels": ("s=f|m", "levels", {"s": ("f", "m")}),
        "delimiter": ("tab", "delimiter", "\t"),
        "header": (False, "header", False),
        "encoding": ("latin-1", "text_encoding", "latin-1"),
    }
    assert set(NODE_KEYS) == set(expected)
    source = party_source({key: given for key, (given, *_) in expected.items()}, {})
    for _, name, value in expected.values():
        assert getattr(source, name) == value


@parametrise(
    "words",
    {
        place: words
        for program in ("vfl-flower supernode", "flower-supernode")
        for place, words in commands(program).items()
        # The app of the other one has a loader of its own: tests/examples.
        if "--node-config" in words and "existing-app" not in place
    },
)
def test_node_configs_are_read(words):
    (text,) = options(words, "--node-config")
    config = parse_config_args([text.replace("$PWD", "/home/me")])
    assert set(config) <= set(NODE_KEYS)
    assert party_source(config, {}).data == config["data"]


def test_the_page_of_settings_is_what_the_code_declares():
    assert PAGES["docs/settings.md"] == tables.settings()


CONSENT_KEYS = {f.name.replace("_", "-"): f.default for f in fields(Consent)}


def test_the_consent_of_init_has_every_key_with_its_default():
    text = consent_text()
    assert Consent.parse(tomllib.loads(text)) == Consent()
    for kind, meaning in KINDS.items():
        assert re.search(rf"(?m)^{kind} = false +# {meaning}$", text)
    (limit,) = re.findall(r"true: any number; (\{.*?\})", text)
    changed = re.sub("(?m)^# (?=[a-z-]+ = )", "", text)  # those without a default
    changed = re.sub("(?m)^rows = false", f"rows = {limit}", changed)
    given = tomllib.loads(changed)
    assert set(given) == set(CONSENT_KEYS)
    assert set(given) - set(tomllib.loads(text)) == {
        key for key, default in CONSENT_KEYS.items() if default is None
    }
    assert Consent.parse(given).leaves == {"rows": Limit(run=2000, life=10000)}


@pytest.mark.parametrize("table", ["keys", "kinds", "needs"])
def test_the_tables_of_consent_are_what_the_code_declares(table):
    text = getattr(tables, f"consent_{table}")()
    assert text in PAGES["docs/consent.md"]
    every = {"keys": {*CONSENT_KEYS} - {"leaves", "peers"}, "kinds": {*KINDS}}
    every["needs"] = {name for name in algorithms() if name != "align"}
    assert {*re.findall(r"[a-z-]+", text)} >= every[table]


@pytest.mark.parametrize("text", toml_blocks("docs/privacy.md", "[leaves]"))
def test_consents_of_the_page_are_enough_for_their_strategies(text):
    consent = Consent.parse(tomllib.loads(text))
    for name in consent.strategies:
        terms = replace(terms_of(name), parties=consent.least_parties)
        assert consent.lacks(terms) == [], name


def test_messages_of_the_page_on_trouble_are_those_of_the_package():
    """But for what stands in the place of names and numbers."""
    texts = "".join(path.read_text() for path in ROOT.glob("vfl_flower/**/*.py"))
    code = re.sub(r"[^\w:'=-]+", " ", re.sub(r'"\s+f?"|\{[^{}\n]*\}', "", texts))
    rows = re.findall(r"(?m)^(`.*?`) \| ", PAGES["docs/troubleshooting.md"])
    assert len(rows) > 15
    for piece in re.split(r"`, `|…", "…".join(rows)):
        words = re.sub(r"[^\w:'=-]+", " ", piece).strip()
        assert words in code, piece


def words_in_code(page: str) -> Iterator[str]:
    """Yield what stands in backquotes in the text of a page."""
    text = re.sub(r"(?ms)^ *```.*?^ *```", "", PAGES[page])
    yield from re.findall(r"`([^`\n]+)`", text)


@pytest.mark.parametrize("page", PAGES)
def test_keys_in_the_text_exist(page):
    """Those with a section, and those with dashes whatever their section."""
    keys = run_keys()
    sections = "|".join(algorithms())
    known = {key.rpartition(".")[2] for key in keys} | set(NODE_KEYS) | set(keys)
    known |= {"num-partitions", "num-supernodes"} | set(CONSENT_KEYS) | set(KINDS)
    for name, strategies in algorithms().items():
        known |= {name} | {strategy.task for strategy in strategies}
        for strategy in strategies:
            for setting in settings_of(strategy):
                known |= set(setting.choices)
    known |= {"flower-superlink", "flower-supernode", "vfl-flower"}
    for code in words_in_code(page):
        name = code.partition("=")[0]
        if re.fullmatch(rf"({sections})\.[\w-]+", name):
            assert name in keys, code
        elif re.fullmatch(r"[a-z]+(-[a-z]+)+", name):
            assert name in known, code


# -- names and places ------------------------------------------------------------------


def test_options_of_the_api_stand_below_a_name():
    assert not re.search(r"(?m)^(?!:::).*\n    options:", PAGES["docs/api.md"])


def test_members_of_the_api_exist():
    options = r"::: (\S+)\n    options: \{members: \[(.*?)\]"
    listed = re.findall(options, PAGES["docs/api.md"])
    assert listed
    for name, members in listed:
        kind = pydoc.locate(name)
        known = {*dir(kind)}.union(
            *(vars(c).get("__annotations__", ()) for c in kind.__mro__)
        )
        assert known >= set(members.split(", ")), name


@pytest.mark.parametrize("name", re.findall("(?m)^::: (.*)", PAGES["docs/api.md"]))
def test_each_name_of_the_api_has_an_example(name):
    shown = pydoc.locate(name)
    shown = shown if callable(shown) else type(shown)  # a constant: that of its class
    assert ">>> " in inspect.getdoc(shown), name


def test_the_figures_are_as_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "IMAGES", tmp_path)
    figures.draw()
    drawn = list(tmp_path.iterdir())
    assert len(drawn) == 5
    for path in drawn:
        assert path.read_text() == (ROOT / "docs/img" / path.name).read_text()


def test_the_glossary_has_the_words_of_the_report():
    text = " ".join(PAGES["docs/glossary.md"].split())
    assert all(f" **{word}**: {meaning}" in text for word, meaning in WORDS.items())


def test_the_existing_app_needs_the_flower_of_the_package():
    projects = (ROOT, ROOT / "examples" / "existing_app")
    texts = [(folder / "pyproject.toml").read_text() for folder in projects]
    first, second = (re.search(r'"flwr\S*(>=.*?)"', text)[1] for text in texts)
    assert first == second


def test_the_readme_has_the_two_commands_and_the_ci_runs_its_tests():
    shown = re.findall(r"(?m)^ {4}(make \w+)$", PAGES["README.md"])
    assert shown == ["make demo", "make test"]
    assert "make test" in (ROOT / ".ci" / "run").read_text().splitlines()


def test_readme_is_short():
    assert len(PAGES["README.md"].split()) <= 700


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.strip().replace(" ", "-")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", PAGES[page]):
        file = ((ROOT / page).parent / target).resolve() if target else ROOT / page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"(?m)^#+ (.*)$", file.read_text())
            assert anchor in map(slug, headings), f"{target}#{anchor}"


def test_every_page_is_reached():
    """From the README, by links."""
    reached, new = set(), {"README.md"}
    while new:
        reached.add(page := new.pop())
        for target in re.findall(r"\]\(([^)#:]+\.md)[^)]*\)", PAGES[page]):
            file = ((ROOT / page).parent / target).resolve()
            new |= {file.relative_to(ROOT).as_posix()} - reached
    assert {page for page in PAGES if page.startswith("docs/")} <= reached


DIRS = "app|clients|data|models|numerics|protocol|secure_aggregation|sklearn|strategies"


@pytest.mark.parametrize("page", PAGES)
def test_files_modules_and_commands_in_the_text_exist(page):
    outside = "docs|tests|benchmarks|examples|simulations|vfl_flower"
    for code in words_in_code(page):
        path = re.fullmatch(rf"((?:{outside}|{DIRS})/[\w/.-]*?)(?::.*)?", code)
        if path and "NAME" not in code and re.search(r"\.\w+$|/$", path[1]):
            inside = ROOT / "vfl_flower" / path[1]
            assert (ROOT / path[1]).exists() or inside.exists(), code
        if command := re.match(r"python -m ([\w.]+)", code):
            assert importlib.util.find_spec(command[1]), code
        module = re.fullmatch(
            r"((?:vfl_flower|simulations)(?:\.\w+)+)(?::(\w+))?", code
        )
        if module:
            actual = importlib.util.find_spec(module[1]) or importlib.util.find_spec(
                module[1].rpartition(".")[0]
            )
            assert actual, code
            if module[2]:
                assert hasattr(importlib.import_module(module[1]), module[2]), code


# -- the papers' claims ----------------------------------------------------------------

CLAIMS = "docs/papers/claims.md"


def claims() -> dict[str, tuple[str, str, list[str]]]:
    """Return verdict, evidence and commands of each claim, by the claim."""
    found = {}
    for section in PAGES[CLAIMS].split("\n## ")[1:]:
        for row in re.findall(r"(?m)^\| (.+) \|$", section)[1:]:  # without the header
            claim, verdict, evidence, shown_by = re.split(r" \|(?: |$)", f"{row} |")[:4]
            found[claim] = verdict, evidence, re.findall(r"`([^`]+)`", shown_by)
    return found


def test_each_claim_has_a_verdict_and_a_command():
    meanings = PAGES[CLAIMS].split("\n## ")[0]
    verdicts = set(re.findall(r"(?m)^\| ([^|]+) \| (?!meaning)", meanings))
    assert len(claims()) > 60
    assert {verdict for verdict, _, _ in claims().values()} == verdicts
    for claim, (verdict, evidence, shown_by) in claims().items():
        assert shown_by or verdict == "not checked", claim
        assert evidence, claim


def test_commands_of_claims_exist():
    """Tests by their names; others as those that made a page of figures."""
    every = {command for *_, shown_by in claims().values() for command in shown_by}
    nodes = {command.removeprefix("python -m pytest ") for command in every}
    nodes = {node for node in nodes if node.startswith("tests/")}
    assert len(nodes) > 40
    for node in nodes:
        file, _, name = node.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        tests = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
        assert name in tests, node
        marks = [ast.unparse(mark) for mark in tests[name].decorator_list]
        assert not [mark for mark in marks if "skip" in mark or "slow" in mark], node
    figures = [PAGES[page] for page in PAGES if page.endswith("-results.md")]
    for command in every - {f"python -m pytest {node}" for node in nodes}:
        listed = f"\n    {command}\n", f"`{command}`"
        assert any(form in page for page in figures for form in listed), command


NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")


def below(page: str, anchor: str) -> str:
    """Return what stands below a heading, with the headings under it."""
    level, found = 0, ""
    for part in re.split(r"(?m)^(?=#+ )", PAGES[page]):
        marks, _, heading = part.partition("\n")[0].partition(" ")
        if slug(heading) == anchor:
            level, found = len(marks), part
        elif level and len(marks) <= level:
            break
        elif level:
            found += part
    return found


def among(figure: str, others: Iterable[str]) -> bool:
    """Say whether a figure is one of others, rounded to its own digits."""
    digits = figure.partition("e")[0].replace(",", "").replace(".", "").lstrip("0")
    if "." not in figure:
        digits = digits.rstrip("0")
    wanted = float(figure.replace(",", ""))
    values = (float(other.replace(",", "")) for other in others)
    places = max(0, len(digits) - 1)
    return any(float(f"{value:.{places}e}") == wanted for value in values)


def test_figures_of_claims_are_those_of_the_sections_that_they_name():
    """Each number of the evidence, rounded to its digits, is in a section it links to.

    Sentences before the first one with a link are of the tests that the claim names.
    Numbers that a section happens to have as well are not noticed.
    """
    compared = 0
    for claim, (_, evidence, _) in claims().items():
        links = re.findall(r"\]\(([\w-]+-results\.md)#([^)]+)\)", evidence)
        sections = [below(f"docs/papers/{page}", anchor) for page, anchor in links]
        there = [number for text in sections for number in NUMBER.findall(text)]
        sentences = re.split(r"(?<=\.) (?=[A-Z])", evidence)
        linked = dropwhile(lambda sentence: "-results.md" not in sentence, sentences)
        text = re.sub(r"\]\([^)]*\)", "]", " ".join(linked))
        for figure in NUMBER.findall(text):
            assert among(figure, there), f"{figure} of: {claim}"
            compared += 1
    assert compared > 50


@pytest.mark.parametrize(
    "page", ["docs/contribute.md", *(f"docs/papers/{name}.md" for name in PAPERS)]
)
def test_functions_that_a_page_names_exist(page):
    named = re.findall(rf"`((?:{DIRS})/[\w/]+\.py): ([^`]+)`", PAGES[page])
    assert len(named) >= 4
    for file, functions in named:
        path = Path("vfl_flower", file)
        module = importlib.import_module(".".join(path.with_suffix("").parts))
        for name in functions.split(", "):
            actual: Any = module
            for part in name.split("."):
                actual = getattr(actual, part)


@pytest.mark.parametrize("name", PAPERS)
def test_tables_of_who_learns_what_have_every_step(name):
    text = PAGES[f"docs/papers/{name}.md"]
    section = text.split("## Who learns what", 1)[1].split("\n## ", 1)[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    cells = [row.split("|")[1].partition("(")[0] for row in rows]
    told = {step for cell in cells for step in re.findall(r"`(\w+)`", cell)}
    steps = {s.function.__name__ for s in STEPS.values() if s.algorithm in PAPERS[name]}
    assert told == steps | {"hello"}


def test_who_learns_what_is_what_the_steps_declare(monkeypatch):
    """Of fewer rows than the command takes; coresets need as many."""

    def of_fewer(strategy, shapes):
        few = None if strategy.steps[0].algorithm == "coresets" else 300
        return rehearse(strategy, shapes, few)

    monkeypatch.setattr(tables, "rehearse", of_fewer)
    assert tables.learned_at_defaults() in PAGES["docs/security.md"]
