"""Rows of throughput and of memory: all clients in rounds, each a process of its own on a new or a filled topic."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from statistics import median

from bench.broker.clients import ClientError, create_topic, delete_topic, records_in
from bench.broker.servers import OURS as OUR_BROKER
from bench.broker.servers import Server
from bench.clients.peers import WARM_UP_SHARE
from bench.clients.plans import (
    CONFLUENT,
    CONSUME,
    FLAT,
    KCAT,
    MEMORY_RECORDS,
    MEMORY_WAYS,
    OURS,
    PARTITIONS,
    PEERS,
    PRODUCE,
    TARGETS,
    Data,
    Run,
    runs,
    scaled,
)
from bench.clients.runs import figures_of
from bench.report import Options, Row, Show

LEAST_RECORDS = 10_000
ROUNDS = 3
SPEED = "records_per_s"
CPU = {"client_cpu_s": "CPU of the client", "broker_cpu_s": "CPU of the broker"}
"""Processor seconds per GB of values, beside each speed that has a target."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """One row: a figure of a way of ours and of a peer."""

    figure: str
    ours: str
    peer: str
    name: str


class _Figures:
    """Figures by client, of each round; and why a client has none."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self.values: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
        self.errors: dict[str, str] = {}

    def row(self, asked: _Comparison) -> Row:
        """The median of the ratios of the rounds, since a drifting machine treats a round's clients alike."""
        ours, peer = asked.ours, asked.peer
        errors = [f"{way}: {self.errors[way]}" for way in (ours, peer) if way in self.errors]
        mine, its = ({number: of[asked.figure] for number, of in self.values[way].items()} for way in (ours, peer))
        both = [number for number in mine if number in its]
        is_speed = asked.figure == SPEED
        per_gb = 1 if is_speed else 1e9 / self._data.record_bytes
        return Row(
            name=asked.name,
            unit="records/s" if is_speed else "s/GB",
            ours=median(mine.values()) * per_gb if mine else None,
            peer=peer,
            theirs=median(its.values()) * per_gb if its else None,
            ratio_of_rounds=median(mine[number] / its[number] for number in both) if both else None,
            target=TARGETS.get((ours, peer)) if is_speed else None,
            error="; ".join(errors),
        )


def _comparisons(action: str, data: Data, suffix: str, *, all_pairs: bool) -> list[_Comparison]:
    """The rows of one direction and one kind of data: of all pairs of clients, or of those with targets alone."""
    pairs = [pair for pair in product(OURS[action], PEERS[action]) if all_pairs or pair in TARGETS]
    speeds = [_Comparison(SPEED, *pair, f"{pair[0]}, {data.name}, {pair[1]}{suffix}") for pair in pairs]
    return speeds + [
        _Comparison(figure, *pair, f"{title}, {pair[0]}, {data.name}, {pair[1]}{suffix}")
        for pair in pairs
        if pair in TARGETS
        for figure, title in CPU.items()
    ]


def throughput(
    options: Options, server: Server, action: str, data: Data, show: Show, *, all_pairs: bool = True
) -> list[Row]:
    """The selected rows of one direction and one kind of data; those with targets, or of all pairs of clients."""
    suffix = "" if server.name == OUR_BROKER else f", {server.name}"
    asked = [each for each in _comparisons(action, data, suffix, all_pairs=all_pairs) if options.selects(each.name)]
    ways = {way for each in asked for way in (each.ours, each.peer)}
    chosen = [
        scaled(run, options.scaled(run.records, least=LEAST_RECORDS)) for run in runs(action, data) if run.way in ways
    ]
    if not chosen:
        return []
    figures = _Figures(data)
    with _filled(server, action, data, chosen) as topic:
        for number in range(options.rounds_or(ROUNDS)):
            first = number % len(chosen)
            for run in chosen[first:] + chosen[:first]:
                show(f"{run.way}, {data.name}{suffix}: round {number + 1}")
                try:
                    figures.values[run.way][number] = _measured(server, topic, run)
                except ClientError as error:
                    figures.errors[run.way] = str(error)
    return [figures.row(each) for each in asked]


def memory(options: Options, server: Server, action: str, show: Show) -> list[Row]:
    """Rows of resident memory over many records."""
    rows = []
    data = Data(record_bytes=100, codec="none")
    records = options.scaled(MEMORY_RECORDS, least=LEAST_RECORDS)
    for way in MEMORY_WAYS[action]:
        name = f"RSS over {MEMORY_RECORDS // 1_000_000} million records: {way}"
        if not options.selects(name):
            continue
        show(name)
        run = Run(action=action, way=way, data=data, records=records)
        try:
            with _filled(server, action, data, [run]) as topic:
                growth = _measured(server, topic, run)["memory"]
            rows.append(Row(name=name, unit="most / after the first part", ours=growth, target=FLAT))
        except ClientError as error:
            rows.append(Row(name=name, unit="most / after the first part", target=FLAT, error=str(error)))
    return rows


@contextmanager
def _filled(server: Server, action: str, data: Data, chosen: list[Run]) -> Iterator[str]:
    """A topic that holds what consumers ask for; none for producers, which get one each."""
    if action == PRODUCE:
        yield ""
        return
    topic = create_topic(server, PARTITIONS)
    wanted = max(run.records for run in chosen)
    figures_of(server, topic, Run(action=PRODUCE, way=CONFLUENT, data=data, records=wanted))
    try:
        yield topic
    finally:
        delete_topic(server, topic)


def _measured(server: Server, topic: str, run: Run) -> dict[str, float]:
    """One run. A producer's records are counted afterwards. Raises ClientError."""
    if run.action == CONSUME:
        return _with_broker_cpu(server, topic, run, run.records)
    warm_up = int(run.records * WARM_UP_SHARE)
    sent = run.records if run.way == KCAT else run.records + warm_up
    topic = create_topic(server, PARTITIONS)
    try:
        figures = _with_broker_cpu(server, topic, run, sent)
        found = records_in(server, topic, PARTITIONS)
        if found != sent:
            raise ClientError(f"{found} records in the topic of {sent}")
        return figures
    finally:
        delete_topic(server, topic)


def _with_broker_cpu(server: Server, topic: str, run: Run, records: int) -> dict[str, float]:
    before_s = server.cpu_s
    figures = figures_of(server, topic, run)
    return {**figures, "broker_cpu_s": (server.cpu_s - before_s) / records}
