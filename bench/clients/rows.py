"""Rows of throughput and of memory: all clients in rounds, each a process of its own on a new or a filled topic."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
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


class _Figures:
    """Records per second by client, of each round; and why a client has none."""

    def __init__(self) -> None:
        self.values: dict[str, dict[int, float]] = defaultdict(dict)
        self.errors: dict[str, str] = {}

    def row(self, name: str, ours: str, peer: str) -> Row:
        """The median of the ratios of the rounds, since a drifting machine treats a round's clients alike."""
        errors = [f"{way}: {self.errors[way]}" for way in (ours, peer) if way in self.errors]
        mine, its = self.values[ours], self.values[peer]
        both = [number for number in mine if number in its]
        return Row(
            name=name,
            unit="records/s",
            ours=median(mine.values()) if mine else None,
            peer=peer,
            theirs=median(its.values()) if its else None,
            ratio_of_rounds=median(mine[number] / its[number] for number in both) if both else None,
            target=TARGETS.get((ours, peer)),
            error="; ".join(errors),
        )


def throughput(
    options: Options, server: Server, action: str, data: Data, show: Show, *, all_pairs: bool = True
) -> list[Row]:
    """The selected rows of one direction and one kind of data; those with targets, or of all pairs of clients."""
    suffix = "" if server.name == OUR_BROKER else f", {server.name}"
    pairs = [pair for pair in product(OURS[action], PEERS[action]) if all_pairs or pair in TARGETS]
    names = {(ours, peer): f"{ours}, {data.name}, {peer}{suffix}" for ours, peer in pairs}
    asked = {pair: name for pair, name in names.items() if options.selects(name)}
    ways = {way for pair in asked for way in pair}
    chosen = [
        scaled(run, options.scaled(run.records, least=LEAST_RECORDS)) for run in runs(action, data) if run.way in ways
    ]
    if not chosen:
        return []
    figures = _Figures()
    with _filled(server, action, data, chosen) as topic:
        for number in range(options.rounds_or(ROUNDS)):
            first = number % len(chosen)
            for run in chosen[first:] + chosen[:first]:
                show(f"{run.way}, {data.name}{suffix}: round {number + 1}")
                try:
                    figures.values[run.way][number] = _measured(server, topic, run)["records_per_s"]
                except ClientError as error:
                    figures.errors[run.way] = str(error)
    return [figures.row(name, ours, peer) for (ours, peer), name in asked.items()]


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
        return figures_of(server, topic, run)
    topic = create_topic(server, PARTITIONS)
    try:
        figures = figures_of(server, topic, run)
        found = records_in(server, topic, PARTITIONS)
        if found not in (run.records, run.records + int(run.records * WARM_UP_SHARE)):
            raise ClientError(f"{found} records in the topic of {run.records}")
        return figures
    finally:
        delete_topic(server, topic)
