"""Metrics of this broker's replicas, and of the cluster as the controller sees it, named as by Kafka's JMX exporter.

Only the controller reports the metrics of the cluster. Other brokers report 0, so that a sum over all brokers is right,
and an alert on the sum does not depend on which broker is the controller. A broker without ZooKeeper knows neither the
controller nor the live brokers: it reports NaN, and the sum is NaN. The metrics of partitions led here show what their
leader knows of its followers, with or without ZooKeeper.
"""

import math
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.controller.controller_plan import target_replicas
from pipeline.broker.membership.session_watch import SessionWatch
from pipeline.broker.replication.isr_writer import IsrWriter
from pipeline.broker.requests.context import BrokerContext
from pipeline.model import TopicPartition

_REPLICAS = "kafka_server_replicamanager"
_TOPICS = "kafka_server_brokertopicmetrics"
_FETCHERS = "kafka_server_replicafetchermanager"
_CONTROLLER = "kafka_controller_kafkacontroller"
_ELECTIONS = "kafka_controller_controllerstats"
_SESSION = "kafka_server_sessionexpirelistener"


def collect_replicas(broker: BrokerContext, isr_writer: IsrWriter) -> Iterator[Metric]:
    """Metrics of this broker's replicas, mostly of those it leads."""
    partitions = list(broker.replicas.partitions.values())
    leaderships = [partition.leadership for partition in partitions if partition.leadership is not None]
    under_replicated = sum(leadership.is_under_replicated for leadership in leaderships)
    under_min_isr = sum(leadership.lacks_min_isr for leadership in leaderships)
    at_min_isr = sum(leadership.is_at_min_isr for leadership in leaderships)
    offline = len(broker.replicas.failed) + sum(partition.log.failure is not None for partition in partitions)
    moving = 0
    for topic_partition, partition in broker.replicas.partitions.items():
        view = broker.view.partition(topic_partition) if partition.is_leader else None
        moving += view is not None and bool(view.adding or view.removing)
    for name, value, text in (
        ("leadercount", len(leaderships), "Partitions that this broker leads now."),
        ("partitioncount", len(partitions), "Partitions with a replica here."),
        (
            "offlinereplicacount",
            offline,
            "Replicas of this broker that are not served, because a disk failed or a log cannot be read.",
        ),
        ("underreplicatedpartitions", under_replicated, "Partitions led here with replicas out of sync."),
        ("underminisrpartitioncount", under_min_isr, "Partitions led here that refuse acks=all."),
        ("atminisrpartitioncount", at_min_isr, "Partitions led here that refuse acks=all after one more loss."),
        ("reassigningpartitions", moving, "Partitions led here that are being moved."),
    ):
        yield GaugeMetricFamily(f"{_REPLICAS}_{name}", text, value=value)
    yield GaugeMetricFamily(
        "pipeline_stray_logs", "Logs kept here that belong to no partition of this broker.", len(broker.strays.strays)
    )
    for name, value, text in (
        ("isrshrinks", isr_writer.shrinks, "Times that replicas left the ISR of a partition led here."),
        ("isrexpands", isr_writer.expands, "Times that replicas came into the ISR of a partition led here."),
    ):
        yield CounterMetricFamily(f"{_REPLICAS}_{name}", text, value=value)


def collect_copying(broker: BrokerContext) -> Iterator[Metric]:
    """Metrics of copying: from leaders, with the lag behind them, and to followers."""
    counts, sent = broker.replicas.fetchers.counts(), broker.fetch.replication_bytes_out
    yield GaugeMetricFamily(
        f"{_FETCHERS}_maxlag",
        "Largest number of committed records that a follower replica here lacks.",
        value=broker.replicas.fetchers.max_lag,
    )
    for name, value, text in (
        (
            f"{_TOPICS}_replicationbytesin",
            counts.bytes_fetched,
            "Bytes that this broker's followers copied from leaders.",
        ),
        (f"{_TOPICS}_replicationbytesout", sent, "Bytes that followers copied from here."),
        (f"{_FETCHERS}_failures", counts.failures, "Fetches of this broker's followers from leaders that failed."),
        (f"{_FETCHERS}_corruptanswers", counts.corrupt_answers, "Answers of leaders that held a damaged batch."),
    ):
        yield CounterMetricFamily(name, text, value=value)


def collect_controller(broker: BrokerContext) -> Iterator[Metric]:
    """Metrics of the controller, of the cluster's partitions, and of elections.

    A controller that has not reached ZooKeeper for the session timeout does not count: another may have been elected.
    """
    is_active, counts = broker.controller.is_active, broker.controller.counts
    is_known = broker.session.problem is None
    leaderless: tuple[float, float] = _count_leaderless(broker.view) if is_active else (0, 0)
    offline, imbalanced = leaderless if is_known else (math.nan, math.nan)
    live = (len(broker.view.brokers) if is_active else 0) if is_known else math.nan
    topics = list(broker.view.topics()) if is_active else []
    for name, value, text in (
        (
            "activecontrollercount",
            int(is_active and is_known),
            "1 at the broker that is the controller, 0 at the others.",
        ),
        (
            "offlinepartitionscount",
            offline,
            "Partitions of the cluster without a live leader; NaN while ZooKeeper is away.",
        ),
        (
            "activebrokercount",
            live,
            "Brokers that are registered, at the controller; NaN while ZooKeeper is away, 0 elsewhere.",
        ),
        ("preferredreplicaimbalancecount", imbalanced, "Partitions not led by their first replica."),
        ("globaltopiccount", len(topics), "Topics of the cluster, at the controller; 0 elsewhere."),
        (
            "globalpartitioncount",
            sum(len(topic.partitions) for topic in topics),
            "Partitions of the cluster, at the controller; 0 elsewhere.",
        ),
    ):
        yield GaugeMetricFamily(f"{_CONTROLLER}_{name}", text, value=value)
    for name, value, text in (
        ("uncleanleaderelections", counts.unclean_elections, "Elections of a leader that was not in sync."),
        (
            "leaderelections",
            counts.leader_elections,
            "Elections in which another broker became the leader of a partition.",
        ),
    ):
        yield CounterMetricFamily(f"{_ELECTIONS}_{name}", text, value=value)


def collect_session(session: SessionWatch) -> Iterator[Metric]:
    """Metrics of the session to ZooKeeper. Kafka's SessionState is a text, and a label here."""
    is_connected = session.silence_s == 0
    states = GaugeMetricFamily(
        f"{_SESSION}_sessionstate", "1 for the state of the session to ZooKeeper.", labels=["sessionstate"]
    )
    states.add_metric(["CONNECTED"], int(is_connected))
    states.add_metric(["CONNECTING"], int(not is_connected))
    yield states
    for name, value, text in (
        ("zookeepersyncconnects", session.connects, "Connections that this broker made to ZooKeeper."),
        ("zookeeperdisconnects", session.disconnects, "Connections to ZooKeeper that were lost."),
        ("zookeeperexpires", session.expires, "Sessions of this broker that ZooKeeper ended, with its registration."),
    ):
        yield CounterMetricFamily(f"{_SESSION}_{name}", text, value=value)
    yield GaugeMetricFamily(
        "pipeline_zookeeper_silence_seconds",
        "Seconds since ZooKeeper was lost; 0 while it is connected.",
        value=session.silence_s,
    )


def _count_leaderless(view: ClusterView) -> tuple[int, int]:
    """Count partitions without a live leader that has them on disk, and those not led by their preferred replica."""
    offline = imbalanced = 0
    for topic in view.topics():
        for index, partition in topic.partitions.items():
            lost = view.offline_replicas.get(partition.leader, frozenset())
            if partition.leader not in view.brokers or TopicPartition(topic.name, index) in lost:
                offline += 1
            elif partition.leader not in target_replicas(partition)[:1]:
                imbalanced += 1
    return offline, imbalanced
