"""Words that hours lack, and the sentences that name their witnesses. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.audit.judgement.times import duration, iso_time
from pipeline.audit.judgement.verdicts import Witness
from pipeline.audit.ledger.life_table import BEHIND_MS, LifeRecord
from pipeline.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingWord:
    """A witness that an hour lacks. `is_lost`: True if waiting will not bring its word."""

    witness: Witness
    is_lost: bool


def lost_word(name: str, reason: str, cluster: str | None) -> MissingWord:
    """Return a word that waiting will not bring."""
    return MissingWord(witness=Witness(name=name, reason=reason, cluster=cluster), is_lost=True)


def name_of_clock(cluster: str) -> str:
    """Return the name of the witness for the clock of the brokers that store the events of a cluster."""
    return f"clock of the brokers of {cluster}"


def wrong_clocks(witnesses: Iterable[Witness]) -> Mapping[str, Witness]:
    """Return by cluster those of the witnesses that are for the clock of its brokers."""
    return {
        witness.cluster: witness
        for witness in witnesses
        if witness.cluster is not None and witness.name == name_of_clock(witness.cluster)
    }


def silent_counter_witness(
    cluster: str, partition: TopicPartition, word_ms: int, clock: Witness | None, *, never: bool
) -> Witness:
    """Return the witness for a counter whose word does not reach up to now; `never`: it never gave one.

    `clock`: the witness for the clock of the brokers of its cluster, if that is wrong. Then nobody can tell whether the
    counter is silent: reports that are stored at a wrong time do not count for the time at which they were made.
    """
    if clock is not None and not never:
        reason = f"{clock.reason}. Until then reports of {partition} count for no time after {iso_time(word_ms)}"
        return Witness(name=clock.name, reason=reason, cluster=cluster, partition=partition)
    reason = "it never reported it" if never else f"it has not reported it since {iso_time(word_ms)}"
    name = f"the broker of {cluster} that leads {partition}"
    return Witness(name=name, reason=reason, cluster=cluster, partition=partition)


def producer_witness(life: LifeRecord, cluster: str, *, silent: bool) -> Witness:
    """Return the witness for a producer that has not closed an hour."""
    name = f"producer {life.process} on {life.host}"
    reason = "it ended without closing its window" if silent else "it has not closed the hour yet"
    return Witness(name=name, reason=reason + in_brackets(life), cluster=cluster)


def leader_witness(cluster: str, partition: TopicPartition, leader: LifeRecord | None, *, never: bool) -> Witness:
    """Return the witness for a leader that said nothing after an hour; `never`: nor ever before.

    `leader`: its newest life sign, if it is known.
    """
    reason = f"it did not report {partition} after the hour was over"
    if never:
        reason = f"it never reported {partition}; check that the broker counts (setting datacenter)"
    elif leader is not None and leader.is_ended:
        reason = f"it was stopped at {iso_time(leader.seen_ms)}, and {partition} has no other leader since"
    elif leader is not None and clock_fault(leader):
        reason = f"{clock_fault(leader)}, so it has not reported {partition} after the hour was over"
    name = f"the broker of {cluster} that leads {partition}"
    return Witness(name=name, reason=reason, cluster=cluster, partition=partition)


def clock_fault(life: LifeRecord) -> str:
    """Return what is wrong with the clock of a process; empty if nothing is."""
    if abs(life.skew_ms) <= BEHIND_MS:
        return ""
    return f"its clock is {duration(life.skew_ms)} {'ahead' if life.skew_ms > 0 else 'behind'}"


def in_brackets(life: LifeRecord) -> str:
    """Return what is wrong with the clock of a process, as the end of a sentence; empty if nothing is."""
    fault = clock_fault(life)
    return f" ({fault})" if fault else ""
