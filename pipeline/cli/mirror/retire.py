"""`pipeline mirror retire`: the end of a mirror that was shut down for good."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import trio
import typer

from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, ZooKeeper, connected, randomness, wall_clock
from pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from pipeline.client.cluster.cluster import Cluster

CLIENT_ID = "pipeline-mirror"


def retire(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="`mirror.group` of the mirror, or `mirror.group@http.listen`.")
    ],
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the same, and change nothing.")] = False,
    json: Json = False,
) -> None:
    """Remove the selection of a mirror that was shut down for good, so that the audit expects no copies of it.

    Stop the mirror first: it records its selection again when it starts or its settings change, not before. What it has
    copied stays. The options name the hub. May be repeated after an error.
    """
    document = trio.run(_retire, name, bootstrap, zookeeper, dry_run)
    if json:
        output.print_json(document)
        return
    output.say(f"{name} would be retired" if dry_run else f"{name} is retired")
    for flow in document["flows"]:
        output.say(f"flow {flow['name']}: topics {', '.join(flow['topics'])} of {flow['source']}")
    for source in document["left_without_mirror"]:
        output.say(f"no other mirror copies {source}: its hours that mirrors have copied become unknown to the audit")


async def _retire(name: str, bootstrap: str | None, zookeeper: str | None, dry_run: bool) -> dict[str, Any]:
    async with connected(bootstrap, zookeeper, CLIENT_ID) as hub:
        return await retired(hub, name, dry_run=dry_run)


async def retired(hub: "Cluster", name: str, *, dry_run: bool) -> dict[str, Any]:
    """Remove the selection of a mirror from its hub, and return what the mirror selected.

    Raises ConfigurationError if the hub has no such mirror, and PipelineError.
    """
    from pipeline.client.admin.topics import list_topics
    from pipeline.mirror.journals.selection_journal import SelectionJournal
    from pipeline.mirror.journals.selections import SELECTIONS_TOPIC

    journal = SelectionJournal(hub, clock=wall_clock, rng=randomness())
    if SELECTIONS_TOPIC in await list_topics(hub):
        await journal.read_on()
    selections = journal.selections
    known = selections.known()
    if not selections.removal_of(name):
        mirrors = ", ".join(sorted(selections.times_ms())) or "none"
        raise ConfigurationError("NAME", f"the hub has no selection of {name}; it has these mirrors: {mirrors}")
    mine = known.get(name)
    others = {source for other, selection in known.items() if other != name for source in selection.sources}
    if not dry_run:
        await journal.remove(name)
    return {
        "mirror": name,
        "dry_run": dry_run,
        "flows": [] if mine is None else [asdict(flow) for flow in mine.flows],
        "left_without_mirror": [] if mine is None else sorted(set(mine.sources) - others),
    }
