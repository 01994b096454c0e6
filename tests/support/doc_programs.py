"""Checks the types of the Python programs, and pieces of programs, in README.md and docs/: part of `make check`.

    python -m tests.support.doc_programs

A program is a block that runs something at its end. Every other block is a piece: without an import it may use what
`PIECES` declares, and every name of `pipeline.client`.
"""

import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pipeline.client

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUNS = re.compile(r"^(?:trio\.run\(|if __name__)", re.MULTILINE)
PIECES = """\
# mypy: allow-untyped-defs, allow-untyped-calls, no-warn-return-any
# mypy: disable-error-code="no-untyped-def"
from random import SystemRandom
from typing import Any

import trio

from pipeline.client import {names}
from pipeline.model import Clock

spark: Any
my_service: Any
cluster: Cluster
producer: {producer}
consumer: Consumer
stream: MessageStream
group: GroupConsumer
config: GroupConfig
clock: Clock


async def read(stream: MessageStream) -> None: ...


async def piece() -> None:
"""


def module_of(page: Path, block: str) -> str:
    """Return a block as a module that can be checked."""
    if RUNS.search(block):
        return block
    names = ", ".join(sorted(pipeline.client.__all__))
    producer = "SyncProducer" if page.stem == "sync" else "Producer"
    return PIECES.format(names=names, producer=producer) + textwrap.indent(block, "    ")


def modules() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of a module for each block."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            place = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
            line = text.count("\n", 0, found.start()) + 1
            yield f"{place}_line_{line}", module_of(page, found[1])


def main() -> int:
    """Check the types of all blocks. Return mypy's exit code."""
    with tempfile.TemporaryDirectory() as directory:
        for name, text in modules():
            (Path(directory) / f"{name}.py").write_text(text, encoding="utf-8")
        return subprocess.run([sys.executable, "-m", "mypy", directory], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
