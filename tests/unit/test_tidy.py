"""Rules of the house that no other tool checks: sizes, names, openings of docstrings, purity, state in modules."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FUNCTION_LINES = 70
MAX_FILE_LINES = 500
MAX_OBJECT_LINES = 400
MAX_OBJECT_METHODS = 30

SAYS_PURE = re.compile(r"\bPure[.:;]")
WORDS = """it its itself they them he she one ones those these this that who whom whose whoever what whatever which
    whichever where when whenever why how whether if of as for from in on at by to with without before after behind not
    there somebody someone nobody anybody here"""
NO_OPENINGS = frozenset(WORDS.split())
"""Words that leave a reader without the noun that a docstring is about."""

KAFKAS_NAMES = "pipeline/protocol/messages/"
"""One file for each api key, in which types and functions bear the names that Kafka's schemas give them."""
MANY = frozenset({"handle", "main"})
"""Functions that many modules have by rule: one `handle` for each api key, one `main` for each process."""

OF_PROCESS = {
    "pipeline/log/files.py": {"_SPARE"},
    "pipeline/log/known_producers.py": {"KNOWN_PRODUCERS"},
    "pipeline/net/garbage.py": {"RARE_COLLECTIONS"},
    "pipeline/net/page_cache.py": {"_PROBE", "_READERS_OF_DEVICE"},
    "pipeline/records/compression.py": {"_OF_THREAD"},
    "pipeline/records/memory.py": {"OPENED_BATCHES"},
}
"""Parts that a process has one of by nature: memory, file descriptors, garbage collector, threads for each disk."""
STATEFUL = re.compile(
    r"(trio(?!\.lowlevel\.RunVar)|threading|itertools|collections)\..*|defaultdict|deque|Counter|iter|bytearray|count"
    r"|ScanThreads|KnownProducers|RareCollections|MemoryBudget|_SpareDescriptor"
)
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|_?([A-Z][a-z0-9]*)+(_co)?|__all__|logger|([a-z_]+_)?app")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef | ast.Module


@cache
def modules() -> dict[str, ast.Module]:
    """All modules of the package by their path in the repository."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "pipeline").rglob("*.py"))
    }


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path, module in modules().items():
        yield from ((path, node) for node in ast.walk(module))


def length(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def test_a_function_fits_on_a_screen() -> None:
    lengths = {f"{path}: {node.name}": length(node) for path, node in nodes() if isinstance(node, Function)}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


@pytest.mark.parametrize("folder", ["pipeline", "tests", "bench", "examples"])
def test_a_file_has_one_subject(folder: str) -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert {str(path): lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_events_are_logged_through_diagnostics() -> None:
    """Whose default for programs that did not configure structlog is not their stdout."""
    configuring = {"pipeline/cli/entry.py", "pipeline/cli/terminal/output.py", "pipeline/testing/simulation/process.py"}
    imports = {
        path
        for path, node in nodes()
        if (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "structlog" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "structlog")
    }
    assert imports == {"pipeline/diagnostics.py", *configuring}


def test_an_object_is_small_with_all_its_bases() -> None:
    classes = {node.name: node for _, node in nodes() if isinstance(node, ast.ClassDef)}

    def with_bases(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        yield node
        for base in node.bases:
            found = classes.get(base.id) if isinstance(base, ast.Name) and base.id != node.name else None
            if found is not None and not is_protocol(found):
                yield from with_bases(found)

    sizes = {}
    for name, node in classes.items():
        parts = list(with_bases(node))
        methods = sum(isinstance(part, Function) for each in parts for part in each.body)
        sizes[name] = (sum(map(length, parts)), methods)
    assert {
        name: size for name, size in sizes.items() if size[0] > MAX_OBJECT_LINES or size[1] > MAX_OBJECT_METHODS
    } == {}


def is_command(node: Function | ast.ClassDef) -> bool:
    """True if the command line has it, by its verb."""
    return any("command" in ast.unparse(decorator) for decorator in node.decorator_list)


def is_protocol(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id in {"Protocol", "ABC"} for base in node.bases)


def test_one_name_stands_for_one_thing() -> None:
    places = defaultdict(list)
    for path, module in modules().items():
        for node in module.body:
            if isinstance(node, Function | ast.ClassDef) and not path.startswith(KAFKAS_NAMES) and not is_command(node):
                places[node.name].append(path)
    shared = {name for name in places if name in MANY or name.startswith("_")}
    assert {name: paths for name, paths in places.items() if len(paths) > 1 and name not in shared} == {}


def test_a_docstring_opens_with_a_noun_or_a_verb() -> None:
    found = []
    for path, node in nodes():
        text = (ast.get_docstring(node) if isinstance(node, Documented) else None) or ""
        opening = re.match(r"[A-Za-z]+", text)
        if opening and opening[0].lower() in NO_OPENINGS:
            found.append(f"{path}: {getattr(node, 'name', 'module')}: {text.splitlines()[0]}")
    assert found == []


def test_modules_that_call_themselves_pure_are_held_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (held,) = (contract["source_modules"] for contract in contracts if contract["name"].startswith("Pure modules"))
    saying = [
        path.removesuffix(".py").replace("/", ".")
        for path, module in modules().items()
        if SAYS_PURE.search(ast.get_docstring(module) or "")
    ]
    assert saying == held


def test_modules_hold_no_state() -> None:
    assert [path for path, node in nodes() if isinstance(node, ast.Global)] == []
    found = []
    for path, module in modules().items():
        for node in module.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
                called = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
                is_state = STATEFUL.fullmatch(called) is not None and target not in OF_PROCESS.get(path, ())
                if is_state or CONSTANT.fullmatch(target) is None:
                    found.append(f"{path}: {target}")
    assert found == []
