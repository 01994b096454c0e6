"""The report of `pipeline cluster describe`: brokers, and the partitions that need attention, with advice."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import trio

from pipeline.broker.replicas.strays import UNKNOWN_TOPIC
from pipeline.cli.terminal import output
from pipeline.cli.terminal.connect import connected
from pipeline.client.admin import brokers as admin_brokers
from pipeline.client.admin.brokers import LogDir, describe_log_dirs
from pipeline.client.admin.elections import Reassignment, list_reassignments
from pipeline.client.admin.resource_configs import describe_topic_settings
from pipeline.client.cluster.cluster import UNREACHABLE, Cluster
from pipeline.client.cluster.metadata import ClusterMetadata, PartitionMetadata
from pipeline.coordination.znodes import encode_uuid
from pipeline.model import NO_LEADER_EPOCH, BrokerId, TopicPartition
from pipeline.protocol.errors import KafkaError

TIMEOUT_S = 30.0
MIN_ISR = "min.insync.replicas"
MAX_ROWS = 50
"""Rows of each table for people; JSON has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """Partitions by their trouble. A partition that is offline is in no other list."""

    under_replicated: list[dict[str, Any]]
    below_min_isr: list[dict[str, Any]]
    offline: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerReport:
    """State of a broker as it reports it. `log_dirs` is None if unknown, `zookeeper_silence_s` 0 unless it is long."""

    is_there: bool = True
    zookeeper_silence_s: float = 0
    problem: str = ""
    """Reason why the broker could not join its cluster again; empty if it could."""
    lost_znodes: Sequence[str] = ()
    """Znodes of topics that the broker finds missing or unreadable."""
    log_dirs: Sequence[LogDir] | None = None

    @property
    def bytes(self) -> int | None:
        """Bytes of all logs of the broker; None if it reported none."""
        return None if self.log_dirs is None else bytes_of(self.log_dirs)


NO_ANSWER = BrokerReport(is_there=False)


async def gather_cluster(bootstrap: str | None, zookeeper: str | None) -> dict[str, Any]:
    """Return the cluster as its brokers report it. Raises NetworkError, KafkaError."""
    async with connected(bootstrap, zookeeper, "pipeline-cluster") as cluster:
        found = await admin_brokers.describe_cluster(cluster, timeout_s=TIMEOUT_S)
        view = await cluster.fetch_all_topics(timeout_s=TIMEOUT_S)
        moving = await list_reassignments(cluster, timeout_s=TIMEOUT_S)
        settings = await describe_topic_settings(cluster, sorted(view.topics), (MIN_ISR,), timeout_s=TIMEOUT_S)
        min_isr = {topic: int(values.get(MIN_ISR) or 1) for topic, values in settings.items()}
        troubles = find_troubles(view, min_isr, moving)
        answers = await _ask_each(cluster, sorted(view.brokers))
    return {
        "cluster_id": found.cluster_id,
        "controller": found.controller if found.controller in view.brokers else None,
        "brokers": broker_rows(view, answers),
        "topics": len(view.topics),
        "partitions": sum(len(topic.partitions) for topic in view.topics.values()),
        "moving": len(moving),
        "under_replicated": troubles.under_replicated,
        "below_min_isr": troubles.below_min_isr,
        "offline": troubles.offline,
        "strays": describe_strays({broker: answer.log_dirs or () for broker, answer in answers.items()}),
    }


async def _ask_each(cluster: Cluster, brokers: Sequence[BrokerId]) -> dict[BrokerId, BrokerReport]:
    """Ask all brokers at the same time: brokers that do not answer take the whole timeout."""
    answers: dict[BrokerId, BrokerReport] = {}

    async def ask(broker: BrokerId) -> None:
        answers[broker] = await _ask(cluster, broker)

    async with trio.open_nursery() as nursery:
        for broker in brokers:
            nursery.start_soon(ask, broker)
    return answers


async def _ask(cluster: Cluster, broker: BrokerId) -> BrokerReport:
    answer = BrokerReport()
    try:
        with suppress(KafkaError):  # it does not serve this, but it answers
            told = await admin_brokers.describe_cluster(cluster, broker, timeout_s=TIMEOUT_S)
            answer = BrokerReport(
                zookeeper_silence_s=told.zookeeper_silence_s, problem=told.problem, lost_znodes=told.lost_znodes
            )
        with suppress(KafkaError):
            answer = replace(answer, log_dirs=await describe_log_dirs(cluster, broker, timeout_s=TIMEOUT_S))
    except UNREACHABLE:
        return NO_ANSWER
    return answer


def describe_strays(log_dirs: Mapping[BrokerId, Sequence[LogDir]]) -> list[dict[str, Any]]:
    """Return the logs that brokers keep and that belong to none of their partitions."""
    return [
        {
            "broker": broker,
            "topic": stray.topic_partition.topic,
            "partition": stray.topic_partition.partition,
            "topic_id": None if stray.topic_id is None else encode_uuid(stray.topic_id),
            "path": stray.path,
            "reason": stray.reason,
        }
        for broker, dirs in sorted(log_dirs.items())
        for log_dir in dirs
        for stray in log_dir.strays
    ]


def bytes_of(log_dirs: Sequence[LogDir]) -> int:
    """Return the bytes of all logs of a broker."""
    return sum(size for log_dir in log_dirs for size in log_dir.partitions.values())


def broker_rows(view: ClusterMetadata, answers: Mapping[BrokerId, BrokerReport]) -> list[dict[str, Any]]:
    """Return all brokers that are alive or should hold replicas."""
    partitions = [partition for topic in view.topics.values() for partition in topic.partitions.values()]
    leaders = Counter(partition.leader for partition in partitions)
    replicas = Counter(replica for partition in partitions for replica in partition.replicas)
    told = []
    for broker in sorted({*view.brokers, *replicas}):
        endpoint = view.brokers.get(broker)
        answer = answers.get(broker, NO_ANSWER)
        told.append(
            {
                "id": broker,
                "address": None if endpoint is None else str(endpoint.address),
                "rack": None if endpoint is None else endpoint.rack,
                "alive": endpoint is not None,
                "answers": answer.is_there,
                "zookeeper_silence_s": answer.zookeeper_silence_s,
                "problem": answer.problem or None,
                "lost_znodes": list(answer.lost_znodes),
                "leaders": leaders[broker],
                "replicas": replicas[broker],
                "bytes": answer.bytes,
                "full_log_dirs": [each.lack_of_room for each in answer.log_dirs or () if each.lack_of_room],
            }
        )
    return told


def find_troubles(
    view: ClusterMetadata, min_isr: Mapping[str, int], moving: Mapping[TopicPartition, Reassignment]
) -> Troubles:
    """Judge every partition. Pure. Replicas that a reassignment adds are not missed yet.

    A dead broker counts as out of sync before the controller has removed it from the ISR.
    """
    found = Troubles(under_replicated=[], below_min_isr=[], offline=[])
    for name, topic in sorted(view.topics.items()):
        for index, partition in sorted(topic.partitions.items()):
            move = moving.get(TopicPartition(name, index))
            told: dict[str, Any] = {
                "topic": name,
                "partition": index,
                "leader": partition.leader,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
            }
            if partition.leader is None or partition.leader in partition.offline_replicas:
                reason, advice = _explain(view, name, index, partition)
                found.offline.append({**told, "reason": reason, "advice": advice})
                continue
            in_sync = [replica for replica in partition.isr if replica in view.brokers]
            if len(in_sync) < len(partition.replicas) - (0 if move is None else len(move.adding)):
                dead = [replica for replica in partition.replicas if replica not in view.brokers]
                found.under_replicated.append({**told, "dead": dead})
            wanted = min(min_isr.get(name, 1), len(partition.replicas))
            if len(in_sync) < wanted:
                found.below_min_isr.append({**told, "min_isr": wanted})
    return found


def _explain(view: ClusterMetadata, topic: str, index: int, partition: PartitionMetadata) -> tuple[str, str]:
    """Return the reason why no broker serves a partition, and the advice."""
    if partition.leader is not None:
        return (
            f"broker {partition.leader} leads the partition, but cannot open its log, or the disk failed",
            f"`/healthz` and the log of broker {partition.leader} name the file and what to do",
        )
    unclean = f"`pipeline cluster elect --unclean --topic {topic} --partition {index}`"
    alive = [replica for replica in partition.replicas if replica in view.brokers]
    if not partition.isr:
        if alive and partition.leader_epoch == NO_LEADER_EPOCH:
            return (
                "the partition never had a leader, though a replica is on a live broker",
                "if this stays so, check the log of the controller, and ZooKeeper",
            )
        if not alive:
            return "all its replicas are on dead brokers", f"start broker {_any_of(partition.replicas)}"
        return (
            "no replica is known to have all records: the last in-sync replica lost the end of its log",
            f"{unclean} lets a live replica lead with the records that it has; the others are lost",
        )
    live_in_sync = [replica for replica in partition.isr if replica in alive]
    if live_in_sync:
        return (
            f"broker {_any_of(live_in_sync)} is in sync and alive, but does not lead",
            f"if this stays so, its disk cannot be read: `/healthz` of that broker says why. Repair it and restart the"
            f" broker, which then leads with all records; if they are lost for good, {unclean} lets another one lead",
        )
    advice = f"start broker {_any_of(partition.isr)}"
    if alive:
        advice += f"; if it is lost for good, {unclean} lets broker {_any_of(alive)} lead and loses records"
    return f"the in-sync replicas are on dead brokers: {', '.join(map(str, partition.isr))}", advice


def _any_of(brokers: tuple[BrokerId, ...] | list[BrokerId]) -> str:
    return " or ".join(map(str, brokers))


def is_in_trouble(description: Mapping[str, Any]) -> bool:
    """True if a client cannot write, or if that is unknown.

    A partition is offline or below min.insync.replicas, a log dir is full, ZooKeeper lost a topic or its settings,
    there is no controller, or a registered broker does not answer, has no contact to ZooKeeper, or could not join
    again.
    """
    return (
        bool(description["offline"] or description["below_min_isr"])
        or description["controller"] is None
        or any(stray["reason"] == UNKNOWN_TOPIC for stray in description["strays"])
        or any(broker["lost_znodes"] or broker["full_log_dirs"] for broker in description["brokers"])
        or any(_trouble_of(broker) is not None for broker in description["brokers"] if broker["alive"])
    )


def _trouble_of(broker: Mapping[str, Any]) -> str | None:
    """Return the trouble that makes the rest of the description doubtful, None if there is none."""
    if not broker["alive"]:
        return "not alive"
    if not broker["answers"]:
        return "does not answer"
    silence_s = broker["zookeeper_silence_s"]
    if silence_s:
        return f"no ZooKeeper for {silence_s:.0f} s"
    return "cannot join again" if broker["problem"] else None


def _state_of(broker: Mapping[str, Any]) -> str:
    return _trouble_of(broker) or ("disk full" if broker["full_log_dirs"] else "alive")


def print_cluster(told: Mapping[str, Any]) -> None:
    """Print the description for people."""
    output.say(
        f"Cluster {told['cluster_id']}, controller {_or_none(told['controller'])}: {told['topics']} topics,"
        f" {told['partitions']} partitions, {told['moving']} of them being moved"
    )
    keys = ["id", "address", "state", "rack", "leaders", "replicas", "bytes"]
    rows = [[{**broker, "state": _state_of(broker)}[key] for key in keys] for broker in told["brokers"]]
    output.say("\n" + output.table(["BROKER", "ADDRESS", "STATE", "RACK", "LEADERS", "REPLICAS", "BYTES"], rows))
    _print_doubts(told["brokers"])
    _print_partitions("Under-replicated", told["under_replicated"], {"dead": "DEAD-REPLICAS"})
    _print_partitions("Below min.insync.replicas", told["below_min_isr"], {"min_isr": "MIN-ISR"})
    _print_partitions("Offline", told["offline"], {})
    for advice, partitions in _by_advice(told["offline"]).items():
        output.say(f"\n{', '.join(partitions)}: {advice}")
    _print_strays(told["strays"])


def _print_doubts(brokers: Sequence[Mapping[str, Any]]) -> None:
    """Print the troubles that the lists of partitions cannot show."""
    if any(broker["zookeeper_silence_s"] for broker in brokers):
        output.say(
            "\nBrokers without contact to ZooKeeper report outdated state: no leader is elected and no ISR changes"
            " meanwhile, and the lists below may be wrong. Check ZooKeeper; do not restart brokers."
        )
    for problem in sorted({broker["problem"] for broker in brokers if broker["problem"]}):
        output.say(f"\n{problem}. Restart no broker before that: it could not join.")
    lost = sorted({path for broker in brokers for path in broker["lost_znodes"]})
    if lost:
        output.say(
            "\nZooKeeper lost znodes of topics: restore them before a broker is restarted, since it would lack their"
            f" contents (min.insync.replicas, say). Missing or unreadable: {', '.join(lost[:MAX_ROWS])}"
        )
    for broker in brokers:
        for full in broker["full_log_dirs"]:
            output.say(f"\nBroker {broker['id']}: {full}.")
    silent = [broker for broker in brokers if broker["alive"] and not broker["answers"]]
    for broker in silent:
        output.say(
            f"\nBroker {broker['id']} is registered and does not answer: if other clients cannot reach it either, the"
            f" {broker['leaders']} partitions that it leads are not served."
        )


def _print_strays(strays: Sequence[Mapping[str, Any]]) -> None:
    if not strays:
        return
    output.say(f"\nStrays: {len(strays)}")
    keys = ["broker", "topic", "partition", "topic_id", "path"]
    rows = [[output.joined(stray[key]) for key in keys] for stray in strays[:MAX_ROWS]]
    output.say(output.table(["BROKER", "TOPIC", "PARTITION", "TOPIC-ID", "PATH"], rows))
    if len(strays) > MAX_ROWS:
        output.say(f"and {len(strays) - MAX_ROWS} more, all with --json")
    for reason in sorted({stray["reason"] for stray in strays}):
        topics = sorted({stray["topic"] for stray in strays if stray["reason"] == reason})
        output.say(f"\n{', '.join(topics[:MAX_ROWS])}: {reason}")
    output.say(
        "\nRestore ZooKeeper's data to serve them again; "
        "`pipeline cluster remove-stray` removes the strays of a topic id."
    )


def _print_partitions(title: str, partitions: list[dict[str, Any]], more: Mapping[str, str]) -> None:
    if not partitions:
        output.say(f"\n{title}: none")
        return
    output.say(f"\n{title}: {len(partitions)}")
    keys = ["topic", "partition", "leader", "replicas", "isr", *more]
    rows = [[output.joined(partition[key]) for key in keys] for partition in partitions[:MAX_ROWS]]
    output.say(output.table(["TOPIC", "PARTITION", "LEADER", "REPLICAS", "ISR", *more.values()], rows))
    if len(partitions) > MAX_ROWS:
        output.say(f"and {len(partitions) - MAX_ROWS} more, all with --json")


def _by_advice(offline: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Group offline partitions by reason and advice."""
    found: dict[str, list[str]] = {}
    for partition in offline[:MAX_ROWS]:
        name = f"{partition['topic']}-{partition['partition']}"
        found.setdefault(f"{partition['reason']}; {partition['advice']}", []).append(name)
    return found


def _or_none(broker: int | None) -> int | str:
    return "none" if broker is None else broker
