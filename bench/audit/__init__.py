"""The audit: what counting costs a broker, and how fast headers and ranges of logs are summed."""

from bench.page import machine, write_part
from bench.report import Options, Row, Show, markdown


def measure(options: Options, show: Show) -> list[Row]:
    """All selected rows."""
    # Imported here: processes that are measured import a module of this package alone.
    from bench.audit import answers, counting, headers, ledger, ranges, scale

    parts = (headers, ranges, ledger, scale, answers, counting)
    return [row for part in parts for row in part.measure(options, show)]


def publish(rows: list[Row], options: Options) -> None:
    """The table of a full run goes to docs/benchmarks.md."""
    from bench.audit import counting

    pairs = options.rounds_or(counting.PAIRS)
    write_part(
        "audit",
        f"Measured on {machine()}; {pairs} pairs of runs in each row of counting, {options.scale:.0%} of records.\n\n"
        f"{markdown(rows)}",
    )
