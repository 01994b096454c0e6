"""What a mirror computes for a source at each refresh, without the network: by the number of sources.

Every source has ten topics of the same names, which become ten aggregate replicas.
"""

import random
import time
import uuid
from types import SimpleNamespace
from typing import Any, cast

from bench.fitting import Extrapolation, MeasuredRun
from bench.report import Options, Row, Show
from pipeline.client.cluster.metadata import PartitionMetadata, TopicMetadata
from pipeline.mirror.config import MirrorConfig
from pipeline.mirror.current_config import CurrentConfig
from pipeline.mirror.journals.table import PartitionTable
from pipeline.mirror.live_settings import checked_flows
from pipeline.mirror.topics.known_sources import KnownSources
from pipeline.mirror.topics.selected_topics import SelectedTopics
from pipeline.model import BrokerId

TOPICS = 10
PARTITIONS = 1_000
"""Partitions of each source."""
FITTED = (3, 10, 30)
CHECKED = 100
PREDICTED = 100
REFRESHES = 5
ROUNDS = 3
"""Rounds of each size. The least counts: the work is the same in each."""
FIGURES = {
    "first": ("CPU of the mirror's bookkeeping: the first refresh of all sources", ["sources", "squared"]),
    "refresh": ("CPU of the mirror's bookkeeping: a later refresh of all sources", ["sources", "squared"]),
}


def measure(options: Options, show: Show) -> list[Row]:
    """The selected rows."""
    selected = {key: figure for key, figure in FIGURES.items() if options.selects(figure[0])}
    if not selected:
        return []
    found = []
    for sources in (*FITTED, CHECKED):
        show(f"bookkeeping of {sources} sources")
        rounds = [_run(sources, options.scaled(PARTITIONS, least=TOPICS) // TOPICS) for _ in range(ROUNDS)]
        found.append({key: min(each[key] for each in rounds) for key in FIGURES})
    rows = []
    for key, (name, terms) in selected.items():
        *fitted, check = (
            MeasuredRun(name=f"{sources} sources", size=_size(sources), value=figures[key])
            for sources, figures in zip((*FITTED, CHECKED), found, strict=True)
        )
        predicted = f"{PREDICTED} sources", _size(PREDICTED)
        rows += Extrapolation(name=name, unit="s", terms=terms, runs=fitted, check=check, predicted=predicted).rows()
    return rows


def _size(sources: int) -> dict[str, float]:
    return {"sources": sources, "squared": sources**2}


def _run(count: int, partitions: int) -> dict[str, float]:
    names = [f"dc-{number:03}" for number in range(count)]
    config = MirrorConfig.from_settings(
        {
            "destination.bootstrap.servers": "hub:9092",
            "topics": [".*"],
            "http.listen": "127.0.0.1:0",
            "sources": [{"name": name, "bootstrap.servers": f"{name}:9092"} for name in names],
        }
    )
    current, table = CurrentConfig(config), PartitionTable()
    selected = SelectedTopics(table)
    hub = cast("Any", SimpleNamespace(view=SimpleNamespace(cluster_id="hub")))
    known = KnownSources(hub, table, selected, current)
    selected.set_flows(checked_flows(config))
    known.set_sources({name: known.known(hub) for name in names})
    rng = random.Random(count)
    topics = {name: _topics(rng, partitions) for name in names}
    for name in names:  # all are asked before the first is entered
        known.cluster_ids[name] = f"cluster of {name}"
        selected.take(name, topics[name])
    began = time.process_time()
    for name in names:
        _refresh(known, table, selected, name, topics[name])
    first = time.process_time() - began
    began = time.process_time()
    for _ in range(REFRESHES):
        for name in names:
            _refresh(known, table, selected, name, topics[name])
    return {"first": first, "refresh": (time.process_time() - began) / REFRESHES}


def _topics(rng: random.Random, partitions: int) -> dict[str, TopicMetadata]:
    found = {number: PartitionMetadata(leader=BrokerId(1)) for number in range(partitions)}
    return {
        f"topic-{number}": TopicMetadata(
            name=f"topic-{number}", id=uuid.UUID(int=rng.getrandbits(128)), partitions=found
        )
        for number in range(TOPICS)
    }


def _refresh(
    known: KnownSources, table: PartitionTable, selected: SelectedTopics, name: str, topics: dict[str, TopicMetadata]
) -> None:
    """Do what a source's refresh does once the source has answered (`SourceMirror._refresh`)."""
    selected.take(name, topics)
    for proposal in table.missing(known.wanted(name).proposals):
        table.apply(proposal)
    selected.take(name, topics)
    known.partition_counts()
    known.entries(name)
