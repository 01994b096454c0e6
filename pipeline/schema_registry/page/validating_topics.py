"""Topics whose brokers check the schema ids of records, as the settings of the topics say.

Brokers are asked when somebody looks, at most once in `KEPT_S`, by one task at a time, within `ASK_TIMEOUT_S`, and for
`MAX_TOPICS` topics at most.

Source: Confluent's broker-side schema validation; `confluent.value.schema.validation` and its like.
"""

from collections.abc import Mapping
from typing import Any, Final

import trio

from pipeline.client.admin.resource_configs import describe_topic_settings
from pipeline.client.cluster.cluster import Cluster
from pipeline.errors import PipelineError

KEPT_S: Final = 15.0
ASK_TIMEOUT_S: Final = 10.0
MAX_TOPICS: Final = 20_000
SIDES: Final = ("key", "value")
_DEFAULT_STRATEGY: Final = "TopicNameStrategy"


class ValidatingTopics:
    """The last answer of a cluster's brokers, and when they gave it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._one_at_a_time = trio.Lock()
        self._asked_at = -KEPT_S
        self._answer: dict[str, Any] = {}

    async def document(self) -> dict[str, Any]:
        """Return `{"topics": [{"topic", "key", "value"}], "asked": COUNT, "age_s"}`, or `{"error", "age_s"}`.

        A demand of a side is None, or `{"strategy", "decodes"}`.
        """
        async with self._one_at_a_time:
            if trio.current_time() - self._asked_at >= KEPT_S or not self._answer:
                self._asked_at = trio.current_time()
                self._answer = await self._ask()
        return {**self._answer, "age_s": trio.current_time() - self._asked_at}

    async def _ask(self) -> dict[str, Any]:
        names = [name for side in SIDES for name in _names(side).values()]
        with trio.move_on_after(ASK_TIMEOUT_S):
            try:
                view = await self._cluster.fetch_all_topics(timeout_s=ASK_TIMEOUT_S)
                topics = sorted(name for name, topic in view.topics.items() if not topic.is_internal)
                if len(topics) > MAX_TOPICS:
                    return {"error": f"the cluster has {len(topics)} topics, more than the {MAX_TOPICS} that are asked"}
                settings = await describe_topic_settings(self._cluster, topics, names, timeout_s=ASK_TIMEOUT_S)
            except PipelineError as error:
                return {"error": str(error)}
            found = [{"topic": topic, **demands_of(settings[topic])} for topic in topics if topic in settings]
            return {"topics": [each for each in found if each["key"] or each["value"]], "asked": len(topics)}
        return {"error": f"no answer within {ASK_TIMEOUT_S:g} s"}


def demands_of(settings: Mapping[str, str]) -> dict[str, dict[str, Any] | None]:
    """Return the demands on the keys and the values of a topic that has these settings; brokers may lack some."""
    demands: dict[str, dict[str, Any] | None] = {}
    for side in SIDES:
        values = {what: settings.get(name, "") for what, name in _names(side).items()}
        decodes = values["decode"] == "true"
        strategy = values["strategy"].rpartition(".")[2] or _DEFAULT_STRATEGY
        demands[side] = {"strategy": strategy, "decodes": decodes} if decodes or values["check"] == "true" else None
    return demands


def _names(side: str) -> dict[str, str]:
    return {
        "check": f"confluent.{side}.schema.validation",
        "strategy": f"confluent.{side}.subject.name.strategy",
        "decode": f"pipeline.{side}.schema.decode",
    }
