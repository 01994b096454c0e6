"""`pipeline deploy`: checks the description of a company, and writes the settings of every service from it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.settings import read_document

if TYPE_CHECKING:
    from pipeline.deployment.company import Company

MAX_SHOWN_FAULTS = 100

app = typer.Typer(no_args_is_help=True, help="Settings of every service of a company, from one description.")
Description = Annotated[Path, typer.Argument(metavar="COMPANY.toml", help="Description of the company.")]


@app.command()
def check(company: Description) -> None:
    """Check a description, and show all of its faults. Writes nothing.

    Exit code 1 if there are faults.
    """
    found = _require_sound(company)
    from pipeline.deployment.services import services_of

    services = output.counted(len(services_of(found)), "service")
    output.say(f"{company}: {services} on {output.counted(len(found.hosts), 'host')}, no faults.")


@app.command()
def render(
    company: Description,
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the files, made if it is missing.")],
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove files of a former render that the description no longer gives.")
    ] = False,
) -> None:
    """Write settings, unit names and Prometheus targets of all hosts, each in its folder OUT/HOST.

    A description with faults changes nothing (exit code 1). Files that are as they should be are not touched.
    """
    from pipeline.cli.deploy.acl_scripts import acl_scripts
    from pipeline.cli.deploy.render_folder import write_render
    from pipeline.deployment.files import rendered_files

    found = _require_sound(company)
    files = {**rendered_files(found, company.name), **acl_scripts(found, company.name)}
    outcome = write_render(folder, files, prune=prune)
    output.say(f"{folder}: {outcome.written} written, {outcome.unchanged} unchanged, {len(outcome.removed)} removed.")
    for path in outcome.removed:
        output.say(f"removed {path}")
    for path in outcome.stale:
        output.say(f"no longer described: {path}")
    if outcome.stale:
        output.say("Stop these services on their hosts, then run the command with --prune to remove the files.")


def _require_sound(path: Path) -> "Company":
    """Return the company of a description; end the command with all faults if there are any."""
    from pipeline.cli.deploy.service_readers import reader_faults
    from pipeline.deployment.company import company_of
    from pipeline.deployment.faults import faults_of

    company, faults = company_of(read_document(path))
    if company is not None:
        faults = faults_of(company, reader_faults)
    if company is None or faults:
        for fault in faults[:MAX_SHOWN_FAULTS]:
            output.say(output.printable(fault))
        output.exit_with(f"{path} has {output.counted(len(faults), 'fault')}")
    return company


@app.command()
def capacity(
    records_per_second: Annotated[
        float, typer.Option(min=0.001, max=1e9, help="Records per second of one live datacenter, in its busiest hour.")
    ],
    record_bytes: Annotated[float, typer.Option(min=1, max=1e9, help="Mean size of a record, not compressed.")],
    batch_records: Annotated[float, typer.Option(min=1, max=1e7, help="Mean number of records in a batch.")],
    datacenters: Annotated[int, typer.Option(min=1, max=100, help="Number of live datacenters.")] = 1,
    partitions: Annotated[int, typer.Option(min=1, max=100_000, help="Partitions of one live datacenter.")] = 100,
    compression_ratio: Annotated[
        float, typer.Option(min=0.1, max=1000, help="Size of records divided by size of batches. 1: not compressed.")
    ] = 1.0,
    replication_factor: Annotated[int, typer.Option(min=1, max=10, help="Replicas of a partition.")] = 3,
    fan_out: Annotated[
        float, typer.Option(min=0, max=1000, help="Consumer groups that read everything in a live datacenter.")
    ] = 1.0,
    hub_fan_out: Annotated[
        float, typer.Option(min=0, max=1000, help="Groups and loads that read everything in the hub.")
    ] = 1.0,
    retention_hours: Annotated[float, typer.Option(min=0, max=1e6, help="Retention in live datacenters.")] = 168.0,
    hub_retention_hours: Annotated[float, typer.Option(min=0, max=1e6, help="Retention in the hub.")] = 168.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate cores, processes, memory, disk and network of brokers, mirror and audit.

    Costs are those of the machine in docs/deploy/capacity.md, where runs of all services at once needed up to 19 % more
    CPU time. `make bench-capacity` measures yours.
    """
    from pipeline.deployment.capacity import MEASURED, CapacityNeed, capacity_of, limits_of

    need = CapacityNeed(
        records_per_s=records_per_second,
        record_bytes=record_bytes,
        batch_records=batch_records,
        compression_ratio=compression_ratio,
        datacenters=datacenters,
        partitions=partitions,
        replication_factor=replication_factor,
        fan_out=fan_out,
        hub_fan_out=hub_fan_out,
        retention_hours=retention_hours,
        hub_retention_hours=hub_retention_hours,
    )
    parts = capacity_of(need, MEASURED)
    for limit in limits_of(need, parts):
        output.note(limit)
    if as_json:
        output.print_json([asdict(part) for part in parts])
        return
    rows = [
        (
            part.part,
            f"{part.count} x",
            f"{part.cores:.2f}",
            str(part.processes),
            f"{part.memory_bytes / 1e9:.2f}",
            f"{part.disk_bytes / 1e9:,.0f}",
            f"{part.received_bytes_per_s / 1e6:.1f}",
            f"{part.sent_bytes_per_s / 1e6:.1f}",
        )
        for part in parts
    ]
    output.say(output.table(("PART", "", "CORES", "PROCESSES", "MEMORY GB", "DISK GB", "IN MB/S", "OUT MB/S"), rows))
