"""Cells of processes that die, move or are told to forget."""

from pipeline.audit.judgement.verdicts import DiscrepancyKind, OffsetSpan, Status
from pipeline.records.tally import HOUR_MS
from tests.support.audited.brokers import Batches
from tests.support.audited.cells import (
    CELLS,
    FIRST,
    SECOND,
    SEEN_AT,
    TIERS,
    Check,
    Found,
    assert_exact,
    assert_not_exact,
    cell,
    findings,
)
from tests.support.audited.forgeries import changed
from tests.support.audited.way import BATCHES_PER_HOUR, GRACE_MS, PARTITIONS, RECORDS, Way

# Deaths


@cell("producer killed", "produced")
def _killed_producer(way: Way, _tier: str) -> None:
    """What was not reported dies with the producer: the audit says so, and no more."""
    way.produce()
    way.report()
    way.pass_time(HOUR_MS + GRACE_MS)
    way.report()
    way.produce(SECOND)
    way.producers[-1].kill()
    way.finish()
    way.pass_time(HOUR_MS)
    way.report()
    assert_exact(way, FIRST)
    hour = way.hours()[SECOND]
    assert hour.status is Status.UNKNOWN
    assert any("web-1" in str(one) or "life-1" in str(one) for one in hour.missing_witnesses)


@cell("producer killed", "live")
def _killed_before_the_answer(way: Way, _tier: str) -> None:
    """A batch is in the log, and its producer died before the answer came: nobody counted the batch."""
    way.produce()
    way.produce(FIRST, 1, is_acknowledged=False)
    way.producers[-1].kill()
    way.start_producer()
    way.produce(SECOND)
    way.finish()
    way.pass_time(HOUR_MS)
    way.report()
    hour = way.hours()[FIRST]
    assert hour.status is Status.UNKNOWN
    assert any("web-1" in str(one) or "life-1" in str(one) for one in hour.missing_witnesses)


@cell("broker killed", "produced")
def _killed_before_the_acknowledgement(way: Way, _tier: str) -> None:
    """The producer sends a batch again that the broker had when it was killed: it is there once."""
    way.produce()
    way.produce_twice(FIRST, between=way.live.restart)
    way.produce(SECOND)
    way.finish()
    assert_exact(way)


@cell("broker killed", "live", "consumed")
def _killed_live_broker(way: Way, _tier: str) -> None:
    way.produce()
    way.consume()
    way.report()
    way.produce(SECOND, 2)
    way.live.restart()
    way.produce(SECOND, 2)
    way.finish()
    assert_exact(way)


@cell("broker killed", "mirrored", "replica", "loaded")
def _killed_hub_broker(way: Way, _tier: str) -> None:
    way.produce()
    way.copy()
    way.load()
    way.report()
    way.produce(SECOND, 2)
    way.copy()
    way.hub.restart()
    way.produce(SECOND, 2)
    way.finish()
    assert_exact(way)


@cell("mirror killed", "mirrored")
def _killed_mirror(way: Way, _tier: str) -> None:
    """Counts of two lives of the mirror add up."""
    way.produce()
    way.copy()
    way.report()
    way.mirror.start()
    way.produce(SECOND)
    way.finish()
    assert_exact(way)


@cell("mirror killed", "replica")
def _mirror_killed_before_it_counted(way: Way, _tier: str) -> None:
    """The hub has a copy, and the mirror died before it counted it: the replica says that it is there."""
    way.produce()
    way.copy()
    way.mirror.start()
    way.produce(SECOND)
    way.finish()
    assert_exact(way)


@cell("leader moved", "produced", "live", "consumed")
def _moved_live_leader(way: Way, _tier: str) -> None:
    way.produce()
    way.consume()
    way.report()
    for partition in PARTITIONS:
        way.live.lead(partition, 1)
    way.produce(SECOND)
    way.finish()
    assert_exact(way)


@cell("leader moved", "mirrored", "replica", "loaded")
def _moved_hub_leader(way: Way, _tier: str) -> None:
    way.produce()
    way.copy()
    way.report()
    for partition in PARTITIONS:
        way.hub.lead(partition, 1)
    way.produce(SECOND)
    way.finish()
    assert_exact(way)


@cell("rebalance", "consumed")
def _rebalanced_group(way: Way, _tier: str) -> None:
    """The member that takes over consumes again what the other had consumed and not committed."""
    way.produce()
    way.consume()
    way.produce(SECOND)
    way.consume(commits=False)
    way.group.join()
    way.finish()
    assert_exact(way)


@cell("rebalance", "mirrored", "replica")
def _rebalanced_mirrors(way: Way, _tier: str) -> None:
    way.produce()
    way.copy()
    first = way.mirror.counter
    way.mirror.start()
    way.produce(SECOND)
    way.copy()
    way.mirror.counter = first
    way.finish()
    assert_exact(way)


@cell("topic recreated", *TIERS)
def _recreated_at_the_source(way: Way, tier: str) -> None:
    """The topic of the second hour is another one. Its records arrive; those of the first one are gone with it."""
    way.produce()
    way.copy()
    way.report()
    way.recreate()
    way.produce(SECOND)
    way.finish()
    assert_exact(way, SECOND)
    stages = {stage.tier: counts.records for stage, counts in way.hours()[SECOND].stages.items()}
    assert stages[tier] == len(PARTITIONS) * BATCHES_PER_HOUR * RECORDS
    assert_not_exact(way, FIRST)


@cell("retention overtook the mirror", "produced", "live")
def _retention_behind_the_mirror(way: Way, _tier: str) -> None:
    """Retention removes what was copied and consumed: no record is missing anywhere."""
    way.produce()
    way.copy()
    way.consume()
    way.report()
    for partition in PARTITIONS:
        way.live.delete_records(partition, BATCHES_PER_HOUR * RECORDS)
    way.produce(SECOND)
    way.finish()
    assert_exact(way)


@cell("retention overtook the mirror", "mirrored", "replica")
def _retention_before_the_mirror(way: Way, _tier: str) -> None:
    way.produce()
    way.report()
    way.live.delete_records(PARTITIONS[0], RECORDS)
    way.gaps[PARTITIONS[0]] = [OffsetSpan(first=0, last=RECORDS - 1)]
    way.consume()
    way.produce(SECOND)
    way.finish()
    assert Found("replica", Status.EXPLAINED, None, RECORDS, 0) in {
        one._replace(kind=None) for one in findings(way, FIRST)
    }
    assert_exact(way, SECOND)


@cell("retention overtook the mirror", "loaded", "consumed")
def _retention_before_a_reader(way: Way, tier: str) -> None:
    """Retention removes records before the load, or the group, has read them."""
    way.produce()
    way.copy()
    way.report()
    if tier == "loaded":
        way.consume()
        way.hub.delete_records(PARTITIONS[0], RECORDS)
    else:
        way.live.delete_records(PARTITIONS[0], RECORDS)
    way.produce(SECOND)
    way.finish()
    expected = Found(SEEN_AT[tier], Status.EXPLAINED, None, RECORDS, 0)
    assert expected in {one._replace(kind=None) for one in findings(way, FIRST)}
    assert_exact(way, SECOND)


@cell("segment file edited", "live")
def _edited_live_segment(way: Way, _tier: str) -> None:
    """The mirror copies what was edited; the live broker had counted it before."""
    way.produce()
    way.consume()
    way.report()
    way.live.edit(PARTITIONS[0], _change_second)
    way.produce(SECOND)
    way.finish()
    assert findings(way, FIRST) == {Found("replica", Status.CHANGED, DiscrepancyKind.CHANGED, 0, 0)}
    assert_exact(way, SECOND)


@cell("segment file edited", "replica")
def _edited_replica_segment(way: Way, _tier: str) -> None:
    """The load reads what was edited; the hub's broker had counted it before."""
    way.produce()
    way.copy()
    way.report()
    way.hub.edit(PARTITIONS[0], _change_second)
    way.produce(SECOND)
    way.finish()
    assert findings(way, FIRST) == {Found("loaded", Status.CHANGED, DiscrepancyKind.CHANGED, 0, 0)}
    assert_exact(way, SECOND)


def _change_second(batches: Batches) -> Batches:
    return [batches[0], changed(batches[1]), *batches[2:]]


# Faults that strike another tier


def _strikes_elsewhere(check: Check) -> Check:
    """Return a check that nothing is found at a tier because of a fault of another one, and that all of it is there."""

    def checked(way: Way, tier: str) -> None:
        check(way, tier)
        for hour in way.hours().values():
            assert not [one.text for one in hour.findings if one.at.tier == tier]
            assert tier in {stage.tier for stage in hour.stages}

    return checked


for _fault, _check in {
    "producer killed": _killed_producer,
    "broker killed": _killed_hub_broker,
    "leader moved": _moved_hub_leader,
    "mirror killed": _killed_mirror,
    "rebalance": _rebalanced_group,
}.items():
    cell(_fault, *(tier for tier in TIERS if (tier, _fault) not in CELLS))(_strikes_elsewhere(_check))
