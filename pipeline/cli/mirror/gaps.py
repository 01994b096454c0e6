"""`pipeline mirror gaps`: the ledger of records that replicas lack."""

from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, ZooKeeper, connected, randomness, wall_clock

if TYPE_CHECKING:
    from pipeline.mirror.journals.gaps import Gap

UNKNOWN = "unknown"


def gaps(
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    source: Annotated[str | None, typer.Option("--source", metavar="NAME", help="Only gaps of this source.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only gaps of this topic.")] = None,
    json: Json = False,
) -> None:
    """List the offsets that replicas lack, from the hub's gap ledger; the options name the hub."""
    ledger, unreadable, begin = trio.run(_read_ledger, bootstrap, zookeeper)
    found = [gap for gap in ledger if source in (None, gap.source) and topic in (None, gap.partition.topic)]
    if json:
        listed = [{**gap.to_json(), "missing_at_most": gap.missing_at_most} for gap in found]
        output.print_json({"gaps": listed, "unreadable_records": unreadable, "ledger_begins_at": begin})
        return
    output.say(table_of_gaps([gap.to_json() for gap in found]))
    if unreadable:
        output.say(f"{output.counted(unreadable, 'record')} of the ledger could not be read and left out.")
    if begin is None:
        output.say("The hub has no ledger: no mirror that keeps one has run, or its topic was deleted.")
    elif begin > 0:
        output.say(f"The ledger is not complete: its records before offset {begin} were deleted.")


def table_of_gaps(found: list[dict[str, Any]]) -> str:
    """Return a table of gaps, each as in JSON."""
    rows = [
        [
            gap["source"],
            f"{gap['topic']}-{gap['partition']}",
            f"{gap['replica_topic']}-{gap['replica_partition']}",
            gap["first"],
            UNKNOWN if gap["last"] is None else gap["last"],
            UNKNOWN if gap["last"] is None else gap["last"] - gap["first"] + 1,
            gap["reason"],
            output.utc_time(gap["time_ms"]),
            gap["detail"],
        ]
        for gap in found
    ]
    headings = ["SOURCE", "PARTITION", "REPLICA", "FIRST", "LAST", "MISSING-AT-MOST", "REASON", "TIME", "DETAIL"]
    return output.table(headings, rows)


async def _read_ledger(bootstrap: str | None, zookeeper: str | None) -> tuple[list["Gap"], int, int | None]:
    """Return all gaps, the number of records that are no gaps, and the first offset; None if there is no ledger."""
    from pipeline.client.admin.topics import list_topics
    from pipeline.mirror.journals.gap_journal import GapJournal
    from pipeline.mirror.journals.gaps import GAPS_TOPIC

    async with connected(bootstrap, zookeeper, "pipeline-mirror") as hub:
        journal = GapJournal(hub, clock=wall_clock, rng=randomness())
        if GAPS_TOPIC not in await list_topics(hub):
            return [], 0, None
        await journal.read_on()
        return list(journal.ledger), journal.skipped, journal.begin
