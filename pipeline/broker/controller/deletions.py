"""Deletions of topics: completes unfinished ones, and prunes old records of them. A task of the controller.

The writes do not need the controller epoch: each is guarded by the record of the deletion, and may be done twice.
"""

import trio

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.runtime.clock_steps import ClockSteps
from pipeline.coordination.deleted_topics import prune_records, remove_znodes
from pipeline.coordination.interface import CoordinationClient
from pipeline.diagnostics import get_logger
from pipeline.errors import CoordinationError
from pipeline.model import Clock

LOOK_S = 5.0
PRUNE_S = 300.0

logger = get_logger(__name__)


async def tend_deletions(zookeeper: CoordinationClient, view: ClusterView, clock: Clock) -> None:
    """Remove what is left of deleted topics, and records of deletions that nobody needs, until cancelled.

    Records are checked only some minutes after the election, and some minutes after the clock was set forward: a clock
    that is wrong for a short while makes all of them look old.
    """
    now_s = trio.current_time()
    due_s, steps = now_s + PRUNE_S, ClockSteps(clock(), now_s)
    seen: set[str] = set()
    while True:
        await trio.sleep(LOOK_S)
        now_s = trio.current_time()
        if steps.went_forward(clock(), now_s):
            due_s = now_s + PRUNE_S
        for name in sorted(seen & view.being_deleted):  # the broker that deletes a topic has had some seconds for it
            try:
                await remove_znodes(zookeeper, name, clock())
            except CoordinationError as error:
                logger.warning("topic_deletion_waits", topic=name, reason=str(error))
            else:
                logger.info("topic_deletion_completed", topic=name)
        seen = set(view.being_deleted)
        if now_s >= due_s:
            due_s = now_s + PRUNE_S
            living = {topic.topic_id for topic in view.topics()}
            try:
                count = await prune_records(zookeeper, living, clock())
            except CoordinationError as error:
                logger.info("deletion_records_not_pruned", reason=str(error))
            else:
                if count:
                    logger.info("deletion_records_pruned", count=count)
