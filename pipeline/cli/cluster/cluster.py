"""`pipeline cluster`: health, leaders and placement of a cluster."""

from functools import partial
from typing import Annotated

import trio
import typer

from pipeline.cli.cluster import reassign
from pipeline.cli.cluster.znode_security import ZnodeProtection
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import Bootstrap, Json, ZooKeeper, connected, find_topic
from pipeline.client.admin.elections import elect_leaders
from pipeline.errors import ConfigurationError
from pipeline.model import TopicPartition
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.elect_leaders import ElectionType
from pipeline.settings import MAX_INT32

app = typer.Typer(no_args_is_help=True, help="A cluster as a whole: health, leaders, placement of partitions.")
app.add_typer(reassign.app, name="reassign")

TIMEOUT_S = 60.0


@app.command()
def describe(bootstrap: Bootstrap = None, zookeeper: ZooKeeper = None, json: Json = False) -> None:
    """Show brokers (leaders, replicas, bytes) and partitions in trouble, with reason and advice.

    Exit code 1 if a partition is offline or has fewer in-sync replicas than min.insync.replicas, or a broker could
    not be restarted.
    """
    from pipeline.cli.cluster.description import gather_cluster, is_in_trouble, print_cluster

    description = trio.run(partial(gather_cluster, bootstrap, zookeeper))
    if json:
        output.print_json(description)
    else:
        print_cluster(description)
    if is_in_trouble(description):
        raise typer.Exit(output.EXIT_FAILED)


@app.command("remove-stray")
def remove_stray(
    topic_id: Annotated[str, typer.Argument(metavar="TOPIC-ID", help="Id as `pipeline cluster describe` shows it.")],
    zookeeper: Annotated[str, typer.Option("--zookeeper", metavar="HOST:PORT", help="The cluster's ZooKeeper.")],
) -> None:
    """Remove the strays of a topic id from all brokers: logs of a topic that ZooKeeper no longer knows.

    Their records are lost for good. A topic that exists is refused: delete it with `pipeline topic delete`.
    Put -- before an id that begins with a dash.
    """
    from pipeline.cli.cluster.strays import record_deletion

    trio.run(partial(record_deletion, zookeeper, topic_id))
    output.say(f"Brokers remove the strays of {topic_id} within 10 s; a broker that is down, after its next start.")


@app.command("secure-znodes")
def secure_znodes(
    zookeeper: Annotated[str, typer.Option("--zookeeper", metavar="HOST:PORT", help="The cluster's ZooKeeper.")],
    acl: Annotated[
        ZnodeProtection,
        typer.Option("--zookeeper.acl", help="ACLs as of brokers with zookeeper.set.acl, or open ones."),
    ],
    path: Annotated[
        list[str] | None,
        typer.Option("--path", metavar="ZNODE", help="Only this znode and those below it; may be repeated."),
    ] = None,
) -> None:
    """Set the ACLs of all znodes of the cluster's brokers, as Kafka's zookeeper-security-migration does.

    The user that brokers have in ZooKeeper stands in the file of --client-config (zookeeper.auth.username and so on).
    Brokers may run meanwhile. A command that was interrupted is given again.
    """
    from pipeline.cli.cluster.znode_security import set_acls

    count = trio.run(partial(set_acls, zookeeper, acl, path))
    output.say(f"Set the ACLs of {count} znodes: {acl.value}.")


@app.command()
def elect(
    is_unclean: Annotated[
        bool,
        typer.Option(
            "--unclean/--preferred",
            help="Elect any live replica of a partition without leader: records that it lacks are lost for good. "
            "Or (default) elect the first replica, if it is in sync.",
        ),
    ] = False,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Partitions of this topic.")] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, max=MAX_INT32, help="Partition of --topic; may be repeated. Default: all."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All partitions that need an election.")] = False,
    bootstrap: Bootstrap = None,
    zookeeper: ZooKeeper = None,
    json: Json = False,
) -> None:
    """Elect leaders. Exit code 1 if an election failed; partitions that need none are no failure."""
    if all_ == (topic is not None):
        raise ConfigurationError("--topic", "give either --topic or --all")
    if partition and topic is None:
        raise ConfigurationError("--partition", "needs --topic")
    kind = ElectionType.UNCLEAN if is_unclean else ElectionType.PREFERRED

    async def run() -> dict[TopicPartition, KafkaError | None]:
        async with connected(bootstrap, zookeeper, "pipeline-elect") as cluster:
            meant = None
            if topic is not None:
                found = await find_topic(cluster, topic)
                meant = [TopicPartition(topic, index) for index in partition or sorted(found.partitions)]
            return await elect_leaders(cluster, meant, kind, timeout_s=TIMEOUT_S)

    results = trio.run(run)
    rows = [
        {"topic": each.topic, "partition": each.partition, "result": _result(refusal)}
        for each, refusal in sorted(results.items())
    ]
    if json:
        output.print_json({"partitions": rows})
    elif rows:
        output.say(output.table(["TOPIC", "PARTITION", "RESULT"], [list(row.values()) for row in rows]))
    else:
        output.say("No partition needs an election.")
    refused = [
        f"{each}: {refusal}"
        for each, refusal in sorted(results.items())
        if refusal is not None and refusal.code != ErrorCode.ELECTION_NOT_NEEDED
    ]
    if refused:
        output.exit_with("no leader was elected for " + "; ".join(refused))


def _result(refusal: KafkaError | None) -> str:
    if refusal is None:
        return "elected"
    if refusal.code == ErrorCode.ELECTION_NOT_NEEDED:
        return "not needed"
    return str(refusal)
