"""The mirror broken on purpose, one rule at a time, to see that the checks notice. For tests of the simulation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import trio

from pipeline.broker.requests import copied_batches
from pipeline.broker.requests.handlers import produce
from pipeline.client.consumer import fetcher
from pipeline.client.consumer.consumer import Consumer
from pipeline.log.unified_log import UnifiedLog
from pipeline.mirror.copying import kept_offsets
from pipeline.mirror.copying.append_queue import Piece
from pipeline.mirror.copying.copies import SourceCopies
from pipeline.mirror.copying.destination import ReplicaPlace
from pipeline.mirror.copying.gap_policy import GapCrossing
from pipeline.mirror.copying.high_watermarks import HighWatermarks
from pipeline.mirror.copying.kept_offsets import KeptOffsets
from pipeline.mirror.copying.progress import CopyProgress
from pipeline.mirror.journals.epoch_journal import EpochJournal
from pipeline.mirror.journals.gap_journal import GapJournal
from pipeline.mirror.journals.pause_journal import PauseJournal
from pipeline.mirror.journals.table import PartitionTable, Proposal
from pipeline.mirror.sharing import group_leader
from pipeline.mirror.sharing.assignment import duties_of
from pipeline.mirror.sharing.group import MirrorGroup
from pipeline.mirror.sharing.group_leader import MISSING, GroupLeader, assignment_version
from pipeline.mirror.topics import copied_partitions, known_sources
from pipeline.records import recompression
from pipeline.testing.simulation.broken_variant import BrokenVariant, both, giving, replacing
from pipeline.testing.simulation.mirrors.plan import KINDS, site_plan_for
from pipeline.testing.simulation.recovery import until


def _remembering_its_position(locate: Any) -> Any:
    async def broken(replicas: KeptOffsets, copy: Any) -> ReplicaPlace:
        known = copy.progress.position
        if known is None:
            found: ReplicaPlace = await locate(replicas, copy)
            return found
        await trio.lowlevel.checkpoint()
        return ReplicaPlace(source_offset=known, replica_end=known)

    return broken


def _demanding_no_end(raw_produce: Any) -> Any:
    async def broken(*args: Any, **options: Any) -> Any:
        return await raw_produce(*args, **{**options, "ends": None})

    return broken


def _recording_later(_record: Any) -> Any:
    async def broken(journal: GapJournal, gap: Any) -> None:
        await trio.lowlevel.checkpoint()
        journal.ledger.apply(gap)
        journal._waiting[gap.key] = gap

    return broken


def _writing_what_waits(read_on: Any) -> Any:
    async def broken(journal: GapJournal) -> None:
        await read_on(journal)
        waiting = [gap.encode() for gap in journal._waiting.values()]
        if waiting:
            await journal.topic.append(waiting, clock=journal._clock, rng=journal._rng)
            journal._waiting.clear()

    return broken


def _remembering_epochs_alone(_add: Any) -> Any:
    async def broken(journal: EpochJournal, added: Any) -> None:
        await trio.lowlevel.checkpoint()
        for epochs in added:
            journal._known[epochs.source, epochs.partition] = replace(journal._merged(epochs), replaces=False)

    return broken


def _entering_any_epoch(_enter: Any) -> Any:
    def broken(state: Any, leader_epoch: int) -> bool:
        state.leader_epoch = leader_epoch
        return True

    return broken


def _confirming_unasked(_confirm: Any) -> Any:
    async def broken(_crossing: GapCrossing, _copy: Any, _end: int) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    return broken


def _comparing_nothing(_compare: Any) -> Any:
    async def broken(_crossing: GapCrossing, _copy: Any, _end: int) -> None:
        await trio.lowlevel.checkpoint()

    return broken


def _appending_again(append: Any) -> Any:
    def broken(log: UnifiedLog, batches: Any, headers: Any, *args: Any) -> Any:
        end, position = int(log.log_end_offset), 0
        if headers[0].base_offset < end:
            moved = []
            for header in headers:
                batches[position : position + 8] = end.to_bytes(8, "big")
                moved.append(header._replace(base_offset=end))
                end, position = end + header.last_offset_delta + 1, position + header.size_bytes
            headers = moved
        return append(log, batches, headers, *args)

    return broken


def _counting_from_the_answer(note_answer: Any) -> Any:
    def broken(copies: SourceCopies, partition: Any, high_watermark: int, _asked_at: float) -> None:
        note_answer(copies, partition, high_watermark, trio.current_time())

    return broken


def _believing_new_leaders(_note_fetched: Any) -> Any:
    def broken(watermarks: HighWatermarks, answers: Any, asked_at: float) -> None:
        for partition, high_watermark in answers:
            watermarks._copies.note_answer(partition, high_watermark, asked_at)

    return broken


def _forgetting_topic_ids(add: Any) -> Any:
    def broken(consumer: Consumer, topic_partition: Any, offset: int, _topic_id: Any = None, **options: Any) -> None:
        add(consumer, topic_partition, offset, **options)

    return broken


def _publishing_over_any(publish: Any) -> Any:
    async def broken(leader: GroupLeader, *args: Any) -> None:
        leader._version = assignment_version(await leader._client.get_or_none(leader._paths.assignment))
        await publish(leader, *args)
        leader._version = MISSING

    return broken


def _leading_for_ever(lead: Any) -> Any:
    async def broken(group: MirrorGroup) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lead, group)
            await until(lambda: group.leader == group.member)
            nursery.cancel_scope.cancel()
        await group._patiently(group._leading.run)

    return broken


def _having_duties_at_once(_has_duties_of: Any) -> Any:
    def broken(group: MirrorGroup, source: str) -> bool:
        return group.is_confirmed and group.share.epoch_of(duties_of(source)) is not None

    return broken


def _appending_paused(_is_due: Any) -> Any:
    return property(lambda piece: piece.is_next)


def _forgetting_pauses(open_journal: Any) -> Any:
    async def broken(journal: PauseJournal) -> None:
        await open_journal(journal)
        for pause in journal.pauses:
            journal.pauses.apply(pause.scope.key, None)

    return broken


def _moving_timestamps(close_payload: Any) -> Any:
    def broken(pieces: Any, header: Any, *args: Any, **options: Any) -> Any:
        return close_payload(pieces, header._replace(base_timestamp=header.base_timestamp + 1), *args, **options)

    return broken


def _taking_the_last(apply: Any) -> Any:
    def broken(table: PartitionTable, proposal: Proposal) -> None:
        table._by_source[proposal.source.cluster].pop(proposal.source.partition, None)
        apply(table, proposal)

    return broken


_NO_END = replacing(kept_offsets, "raw_produce", _demanding_no_end)


def _variant(rule: str, breaks: Any, first_seed: int) -> BrokenVariant:
    """Return a variant that sites of the first seed's kind meet often."""
    return BrokenVariant(rule=rule, breaks=breaks, plan_for=site_plan_for, first_seed=first_seed, every=KINDS)


VARIANTS: Mapping[str, BrokenVariant] = {
    "remembers its position": _variant(
        "the position of a partition is the replica's log end offset, which is asked for after each failure",
        both(_NO_END, replacing(KeptOffsets, "locate", _remembering_its_position)),
        first_seed=63,
    ),
    "appends without an expected end": _variant(
        "a batch is appended only to a log that ends where the mirror last saw it end",
        _NO_END,
        first_seed=113,
    ),
    "writes the ledger after the batch": _variant(
        "offsets that the replica lacks are in the ledger before the first batch behind them",
        both(replacing(GapJournal, "record", _recording_later), replacing(GapJournal, "read_on", _writing_what_waits)),
        first_seed=30,
    ),
    "does not record epochs": _variant(
        "a leader epoch of the source is recorded before its first batch is appended",
        replacing(EpochJournal, "add", _remembering_epochs_alone),
        first_seed=1,
    ),
    "does not compare the replica's end": _variant(
        "a position is fetched after its leader was found to have the replica's last records (KIP-320, decision 67)",
        both(
            both(
                replacing(GapCrossing, "_compare", _comparing_nothing),
                replacing(GapCrossing, "_adopt_epoch", _comparing_nothing),
            ),
            both(
                replacing(fetcher, "enter_epoch", _entering_any_epoch),
                replacing(GapCrossing, "confirm", _confirming_unasked),
            ),
        ),
        first_seed=25,
    ),
    "appends retried batches again": _variant(
        "a retry whose batch was appended before appends nothing",
        both(_NO_END, replacing(UnifiedLog, "append_keeping_offsets", _appending_again)),
        first_seed=2,
    ),
    "shows outdated lags": _variant(
        "a lag is known while the source's last answer is fresh, and unknown after that",
        replacing(CopyProgress, "is_fresh", giving(True)),
        first_seed=34,
    ),
    "counts the age of an answer from its arrival": _variant(
        "the age of a high watermark counts from the request",
        replacing(SourceCopies, "note_answer", _counting_from_the_answer),
        first_seed=23,
    ),
    "believes new leaders": _variant(
        "a new leader's high watermark counts once it knows all that was acknowledged (KIP-207)",
        replacing(HighWatermarks, "note_fetched", _believing_new_leaders),
        first_seed=283,
    ),
    "checks no copier epochs": _variant(
        "once a copier has claimed a replica, no batch of an older copier is appended",
        both(replacing(copied_batches, "check_copier", giving(None)), replacing(produce, "check_copier", giving(None))),
        first_seed=81,
    ),
    "overwrites the assignment": _variant(
        "a leader of a group that lost its session does not publish over the assignment of its successor",
        both(
            both(
                replacing(GroupLeader, "_publish", _publishing_over_any),
                replacing(group_leader, "assignment_version", giving(MISSING)),
            ),
            replacing(MirrorGroup, "_lead", _leading_for_ever),
        ),
        first_seed=11,
    ),
    "does the duties of a source at once": _variant(
        "duties begin when the member that had them before cannot do them any more",
        replacing(MirrorGroup, "has_duties_of", _having_duties_at_once),
        first_seed=20,
    ),
    "takes a recreated topic for the old one": _variant(
        "a topic that was created again is copied into partitions of its own",
        both(
            both(
                replacing(copied_partitions, "is_recreated", giving(False)),
                replacing(known_sources, "is_recreated", giving(False)),
            ),
            replacing(Consumer, "add", _forgetting_topic_ids),
        ),
        first_seed=9,
    ),
    "forgets pauses when it starts": _variant(
        "a pause lasts through restarts",
        replacing(PauseJournal, "open", _forgetting_pauses),
        first_seed=58,
    ),
    "appends what was fetched before a pause": _variant(
        "nothing of a paused partition is appended but what is on its way",
        replacing(Piece, "is_due", _appending_paused),
        first_seed=46,
    ),
    "moves timestamps when it recompresses": _variant(
        "a recompressed batch has the records and the header of the fetched one",
        replacing(recompression, "close_payload", _moving_timestamps),
        first_seed=14,
    ),
    "takes the last record of the table": _variant(
        "the first record that names a source partition counts",
        replacing(PartitionTable, "apply", _taking_the_last),
        first_seed=50,
    ),
}
