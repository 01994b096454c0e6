"""Pages of docs: the parts that benchmarks write, each between two comments that name it."""

import platform
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
DEPLOY = ROOT / "docs" / "deploy"
FIGURES = ROOT / "docs" / "benchmarks"
SMALL_RUNS = ROOT / ".cache" / "bench"
"""Where figures go that are not to be published."""


def write_part(name: str, text: str, *, target: str = "", path: Path = PAGE) -> None:
    """Put `text` in the place of the part of that name, which `make` `target` writes. ValueError if there is none."""
    page = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: written by make {target or f'bench-{name}'} -->", f"<!-- /{name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"{path} has no part {name}")
    path.write_text(pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", page), encoding="utf-8")


def machine() -> str:
    """What the figures were measured on, in a line."""
    information = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = re.search(r"model name\s*: (.*)", information)
    processors = len(re.findall(r"^processor", information, re.MULTILINE))
    memory_kib = int(re.findall(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(encoding="utf-8"))[0])
    name = model[1] if model else platform.machine()
    return f"{processors} x {name}, {memory_kib / 2**20:.0f} GiB, Linux {platform.release()}"
