"""`python -m bench [NAME ...]`: every benchmark, or those named, one after the other. Quote ratios, not times.

Each is a module or package of bench with `measure(options, show) -> list[Row]`, and its first line of documentation
is its title. One may also have `publish(rows, options)`, which puts figures of a full run into the documentation.
"""

import argparse
import sys
from importlib import import_module

from bench.report import Options, as_json, show_on_terminal, table

PARTS = ("codec", "columns", "log", "cleaner", "serialising")
BENCHMARKS = (
    *PARTS,
    "audit",
    "broker",
    "clients",
    "command_line",
    "cluster",
    "mirror",
    "load",
    "registry",
    "scale",
    "capacity",
    "security",
    "faults",
    "paper",
)


def parse(arguments: list[str]) -> tuple[list[str], Options, bool]:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks; exit code 1: a target was missed")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all without")
    parser.add_argument("--rows", default="", metavar="PATTERN", help="only rows whose name holds this expression")
    parser.add_argument("--rounds", type=int, default=0, help="how often each row is measured; medians count")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the amount of data")
    parser.add_argument("--quick", action="store_true", help="fewer rows, one round, a tenth of the data")
    parser.add_argument("--alone", action="store_true", help="clients, faults, mirror: without Apache Kafka")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each benchmark instead of a table")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    options = Options(rows=given.rows, rounds=given.rounds, scale=given.scale, quick=given.quick, alone=given.alone)
    return given.names or list(BENCHMARKS), options, given.json


def run(name: str, options: Options, *, is_json: bool) -> bool:
    """Measure and print; whether all targets were met."""
    module = import_module(f"bench.{name}")
    rows = module.measure(options, show_on_terminal)
    show_on_terminal("")
    if is_json:
        print(as_json(name, rows), flush=True)
    else:
        print(f"== {name}: {(module.__doc__ or name).splitlines()[0]}\n{table(rows)}\n", flush=True)
    if options.is_full and hasattr(module, "publish"):
        module.publish(rows, options)
    return all(row.is_met for row in rows)


def main() -> int:
    names, options, is_json = parse(sys.argv[1:])
    missed = [name for name in names if not run(name, options, is_json=is_json)]
    if missed:
        print(f"below their targets: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
