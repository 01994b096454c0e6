"""`pipeline mirror verify`: compare replicas with their sources, without copying records."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.foreground import Config
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Json, randomness, wall_clock
from pipeline.cli.terminal.settings import read_settings
from pipeline.errors import ConfigurationError, PipelineError
from pipeline.mirror.config import MirrorConfig
from pipeline.model import HostPort
from pipeline.net.nurseries import unwrapped_errors
from pipeline.net.security.client_security import ClientSecurity

if TYPE_CHECKING:
    from pipeline.client.cluster.cluster import Cluster
    from pipeline.mirror.journals.gaps import GapLedger
    from pipeline.mirror.journals.table import PartitionTable
    from pipeline.mirror.verification.verifier import PartitionReport

MAX_DETAILS = 100
"""Differences and reasons that are shown without --json."""


def verify(
    config: Config,
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="Only these replica topics; without, all.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Have brokers read all records and compute the checksums of all batches.")
    ] = False,
    fetch: Annotated[
        bool,
        typer.Option("--fetch", help="Fetch all batches of clusters that cannot sum, such as Apache Kafka."),
    ] = False,
    json: Json = False,
) -> None:
    """Compare each replica partition with its source, batch by batch, by sums that the brokers compute.

    Copies no records, unless --fetch is given for a cluster that cannot sum. Exit code 0 if all was compared and is
    equal, 1 if there is a difference, 5 if something could not be compared and no difference was found.
    """
    try:
        settings = MirrorConfig.from_settings(read_settings(config))
        settings.require_equal_offsets("pipeline mirror verify")
    except ConfigurationError as error:
        raise ConfigurationError(f"{config}: {error.key}", error.reason) from error
    try:
        with unwrapped_errors():
            reports = trio.run(_verify, settings, frozenset(topics or ()), deep, fetch)
    except PipelineError as error:
        output.exit_with(str(error), output.EXIT_NOT_COMPARED)
    documents = [report.to_json() for report in reports]
    if json:
        output.print_json({"partitions": documents})
    else:
        _print_reports(documents)
    verdicts = {document["verdict"] for document in documents}
    if "different" in verdicts:
        raise typer.Exit(output.EXIT_FAILED)
    if "not compared" in verdicts:
        raise typer.Exit(output.EXIT_NOT_COMPARED)


async def _verify(config: MirrorConfig, topics: Collection[str], deep: bool, fetch: bool) -> list["PartitionReport"]:
    from pipeline.client.cluster.cluster import open_cluster
    from pipeline.client.cluster.config import ClientConfig
    from pipeline.mirror.verification.verifier import ReplicaVerifier

    async with AsyncExitStack() as stack:

        async def connect(bootstrap: tuple[HostPort, ...], security: ClientSecurity) -> "Cluster":
            client = ClientConfig(bootstrap=bootstrap, client_id="pipeline-mirror-verify", security=security)
            return await stack.enter_async_context(open_cluster(client))

        hub = await connect(config.destination, config.destination_security)
        sources = {source.name: await connect(source.bootstrap, source.security) for source in config.sources}
        table, ledger = await _read_journals(hub)
        known = {assignment.replica.topic for assignment in table.assignments()}
        if unknown := sorted(set(topics) - known):
            raise PipelineError(f"the partition table has no replica topic {output.enumeration(unknown, 3)}")
        if fetch:
            output.note("--fetch: all batches of clusters that cannot sum are fetched over the network")
        with output.progress("Offsets verified", None) as progress:
            verifier = ReplicaVerifier(
                table, ledger, sources, hub, is_deep=deep, may_fetch=fetch, advance=progress.advance
            )
            return await verifier.verify(topics)


async def _read_journals(hub: "Cluster") -> tuple["PartitionTable", "GapLedger"]:
    """Read the table and the gaps, without creating their topics. Raises PipelineError."""
    from pipeline.client.admin.topics import list_topics
    from pipeline.mirror.journals.gap_journal import GapJournal
    from pipeline.mirror.journals.gaps import GAPS_TOPIC
    from pipeline.mirror.journals.table import TABLE_TOPIC
    from pipeline.mirror.journals.table_journal import TableJournal

    names = await list_topics(hub)
    if TABLE_TOPIC not in names:
        raise PipelineError(f"the hub has no topic {TABLE_TOPIC}: no mirror has written to it yet")
    journal = TableJournal(hub, lambda _: None)
    await journal.read_on()
    if journal.begin > 0 or not journal.table.assignments():
        reason = f"records before offset {journal.begin} were deleted" if journal.begin > 0 else "it has no entries"
        raise PipelineError(f"{TABLE_TOPIC} does not name all replicas: {reason}. Restore it")
    gaps = GapJournal(hub, clock=wall_clock, rng=randomness())
    if GAPS_TOPIC in names:
        await gaps.read_on()
    return journal.table, gaps.ledger


def _print_reports(documents: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        [
            document["source"],
            f"{document['topic']}-{document['partition']}",
            None
            if document["replica_topic"] is None
            else f"{document['replica_topic']}-{document['replica_partition']}",
            document["from_offset"],
            document["up_to_offset"],
            document["records"],
            document["bytes"],
            document["lag"],
            document["verdict"],
        ]
        for document in documents
    ]
    headings = ["SOURCE", "PARTITION", "REPLICA", "FROM", "UP-TO", "RECORDS", "BYTES", "LAG", "VERDICT"]
    output.say(output.table(headings, rows))
    details = [line for document in documents for line in details_of(document)]
    for line in details[:MAX_DETAILS]:
        output.say(line)
    if len(details) > MAX_DETAILS:
        output.say(f"{len(details) - MAX_DETAILS} more lines: --json shows all")


def details_of(document: Mapping[str, Any]) -> list[str]:
    """Return what there is to say of a partition, a line for each difference and each reason."""
    name = f"{document['source']}/{document['topic']}-{document['partition']}"
    lines = [f"{name}: not compared: {output.printable(document['reason'])}"] if document["reason"] else []
    for found in document["differences"]:
        source, replica = _amount(found["source"]), _amount(found["replica"])
        detail = output.printable(found["detail"]) if found["detail"] else f"source {source}, replica {replica}"
        lines.append(f"{name}: offsets {found['first_offset']} to {found['last_offset']}: {found['kind']}: {detail}")
    if document["more_differences"]:
        lines.append(f"{name}: {output.counted(document['more_differences'], 'more difference')}")
    if count := document["batches_by_contents"]:
        batches = f"{count} batch{'es' * (count > 1)}"
        lines.append(f"{name}: contents of {batches} were compared, and not bytes, which differ by recompression")
    for skipped in document["not_compared"]:
        last = skipped["up_to_offset"] - 1
        lines.append(f"{name}: offsets {skipped['from_offset']} to {last}: not compared: {skipped['reason']}")
    return lines


def _amount(sums: Mapping[str, int]) -> str:
    if not sums["batches"]:
        return "nothing"
    records = output.counted(sums["records"], "record")
    return f"{records} in {sums['bytes']} bytes and {sums['batches']} batch{'es' * (sums['batches'] > 1)}"
