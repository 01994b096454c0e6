"""Many datacenters: costs of mirror, audit and coordination in small runs, and those of 100 x 1,000 partitions."""

from bench.page import DEPLOY, machine, write_part
from bench.report import Options, Row, Show, markdown


def measure(options: Options, show: Show) -> list[Row]:
    """All selected rows."""
    # Imported here: processes that are measured import a module of this package alone.
    from bench.scale import audits, bookkeeping, failover, metadata, mirrors

    parts = (metadata, bookkeeping, audits, failover, mirrors)
    return [row for part in parts for row in part.measure(options, show)]


def publish(rows: list[Row], options: Options) -> None:
    """The table of a full run goes to docs/deploy/many-datacenters.md."""
    text = f"Measured on {machine()}; {options.scale:.0%} of the sizes.\n\n{markdown(rows)}"
    write_part("scale", text, path=DEPLOY / "many-datacenters.md")
