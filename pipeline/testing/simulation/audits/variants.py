"""The audit broken on purpose, one rule at a time, to see that the checks notice. For tests of the simulation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.audit.counting import broker_counter
from pipeline.audit.counting.broker_counter import BrokerCounter
from pipeline.audit.counting.producer_counter import ProducerCounter
from pipeline.audit.counting.publisher import CountPublisher
from pipeline.audit.events.tiers import is_audited
from pipeline.audit.judgement.words import Words
from pipeline.audit.ledger import row_table
from pipeline.testing.simulation.broken_variant import BrokenVariant, both, giving, replacing
from pipeline.testing.simulation.mirrors.plan import KINDS, audited_plan_for


def _skipping_a_batch(appended: Any) -> Any:
    def broken(counter: BrokerCounter, topic_partition: Any, headers: Any, batches: Any, now_ms: int) -> None:
        has_skipped = getattr(counter, "has_skipped", False)
        if is_audited(topic_partition.topic) and headers and not has_skipped:
            counter.has_skipped = True  # type: ignore[attr-defined]
            headers, batches = headers[1:], batches[headers[0].size_bytes :]
        appended(counter, topic_partition, headers, batches, now_ms)

    return broken


def _preferring_the_lower_row(is_better: Any) -> Any:
    def broken(new: Any, old: Any, order: Any) -> Any:
        return is_better(old, new, order)

    return broken


def _publishing_after_the_checkpoint(publish_all: Any) -> Any:
    async def broken(publisher: CountPublisher) -> None:
        take = publisher._counter.take_reports

        def take_and_save() -> Any:
            reports = take()
            publisher._counter.published(reports)
            return reports

        publisher._counter.take_reports = take_and_save  # type: ignore[method-assign]
        try:
            await publish_all(publisher)
        finally:
            publisher._counter.take_reports = take  # type: ignore[method-assign]

    return broken


def _closing_what_is_open(take_reports: Any) -> Any:
    def broken(counter: ProducerCounter) -> Any:
        counter.oldest_window = lambda: None
        return take_reports(counter)

    return broken


def _hearing_all(_are_heard: Any) -> Any:
    def broken(_words: Words, topics: Any, *_times: int) -> Any:
        return np.ones(len(topics), np.bool_)

    return broken


def _without_claims(replica_reports: Any) -> Any:
    def broken(*arguments: Any) -> Any:
        for report, *rest in replica_reports(*arguments):
            yield (replace(report, claims=()), *rest)

    return broken


_NO_WORD_IS_MISSED = both(
    both(replacing(Words, "missing", giving([])), replacing(Words, "missing_to_all", giving([]))),
    both(replacing(Words, "is_read", giving(True)), replacing(Words, "are_heard", _hearing_all)),
)


def _variant(rule: str, breaks: Any, first_seed: int) -> BrokenVariant:
    return BrokenVariant(rule=rule, breaks=breaks, plan_for=audited_plan_for, first_seed=first_seed, every=KINDS)


VARIANTS: Mapping[str, BrokenVariant] = {
    "skips a batch": _variant(
        "every committed batch is counted once",
        replacing(BrokerCounter, "appended", _skipping_a_batch),
        first_seed=1,
    ),
    "keeps the lower row": _variant(
        "of two rows of one counter, partition and span the higher one holds",
        replacing(row_table, "is_better", _preferring_the_lower_row),
        first_seed=1,
    ),
    "ignores missing witnesses": _variant(
        "a verdict is exact only if each witness gave its word for the whole hour",
        _NO_WORD_IS_MISSED,
        first_seed=283,
    ),
    "writes checkpoints too early": _variant(
        "a checkpoint is written only after its counts were published",
        replacing(CountPublisher, "_publish_all", _publishing_after_the_checkpoint),
        first_seed=1,
    ),
    "closes windows that are open": _variant(
        "a life closes no window of which a record has no outcome yet",
        replacing(ProducerCounter, "take_reports", _closing_what_is_open),
        first_seed=2,
    ),
    "claims no leader epoch": _variant(
        "a new leader claims its epoch, which voids counts of records that were lost",
        replacing(broker_counter, "replica_reports", _without_claims),
        first_seed=11,
    ),
}
