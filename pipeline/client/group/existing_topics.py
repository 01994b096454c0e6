"""Topics of the cluster, for the filters of a member.

Brokers say which topics exist. With discovery by ZooKeeper they are asked as soon as ZooKeeper has other topics, every
`ASK_AGAIN_S` until they report the same, at most for `CATCH_UP_S`; otherwise when the metadata are old.
"""

from collections.abc import Callable

import trio

from pipeline.client.cluster.cluster import Cluster
from pipeline.client.cluster.registrations import CATCH_UP_S
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError

logger = get_logger(__name__)

ASK_AGAIN_S = 0.1
FAILED_S = 1.0
"""Time after which brokers are asked again that did not answer."""


class ExistingTopics:
    """Knows the topics that exist. `on_change` is called when others may exist than before."""

    def __init__(self, cluster: Cluster, group: str, on_change: Callable[[], None]) -> None:
        self._cluster = cluster
        self._group = group
        self._on_change = on_change
        self._is_wanted = trio.Event()
        self._is_known = False
        self._reported: frozenset[str] = frozenset()
        self.names: frozenset[str] = frozenset()
        """The topics, without internal ones. None until `find`."""

    async def find(self) -> None:
        """Ask a broker, now and from now on again and again (`watch`). A failure is logged."""
        self._is_wanted.set()
        try:
            view = await self._cluster.fetch_all_topics()
        except PipelineError as error:
            self._is_known = False
            logger.warning("topics_unknown", group=self._group, error=str(error))
        else:
            self._is_known = True
            self._reported = frozenset(view.topics)
            self.names = frozenset(name for name, topic in view.topics.items() if not topic.is_internal)
            self._on_change()

    async def watch(self) -> None:
        """Ask again when topics may have changed, until cancelled."""
        await self._is_wanted.wait()
        age_s = self._cluster.config.metadata_max_age_ms / 1000
        seen, changed_at = self._cluster.registered_topics.names, trio.current_time()
        while True:
            registered = self._cluster.registered_topics.names
            if registered != seen:
                seen, changed_at = registered, trio.current_time()
            is_behind = registered is not None and registered != self._reported
            if not self._is_known:
                wait_s = min(FAILED_S, age_s)
            elif is_behind and trio.current_time() < changed_at + CATCH_UP_S:
                wait_s = min(ASK_AGAIN_S, age_s)
            else:
                wait_s = age_s
            with trio.move_on_after(wait_s):
                await self._cluster.registered_topics.wait()
            await self.find()
