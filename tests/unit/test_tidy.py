"""Rules of the house that no other tool holds."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAYS_PURE = re.compile(r"\bPure[.:;]")


def test_modules_that_call_themselves_pure_are_held_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (held,) = (contract["source_modules"] for contract in contracts if contract["name"].startswith("Pure modules"))
    saying = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "pipeline").rglob("*.py"))
        if SAYS_PURE.search(ast.get_docstring(ast.parse(path.read_text())) or "")
    ]
    assert saying == held
