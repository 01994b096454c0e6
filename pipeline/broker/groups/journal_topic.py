"""Creates `__consumer_offsets` when it is first needed, with Kafka's settings."""

import trio

from pipeline.broker.cluster.view import ClusterView
from pipeline.broker.groups.journal import GROUP_METADATA_TOPIC
from pipeline.broker.settings.broker import BrokerConfig
from pipeline.broker.topics.changes import TopicChanges
from pipeline.broker.topics.plan import WantedTopic
from pipeline.diagnostics import get_logger
from pipeline.errors import PipelineError
from pipeline.protocol.errors import ErrorCode, KafkaError

CREATE_TIMEOUT_S = 5.0

logger = get_logger(__name__)


def journal_topic(config: BrokerConfig) -> WantedTopic:
    """Return the topic to create."""
    return WantedTopic(
        name=GROUP_METADATA_TOPIC,
        partitions=config.offsets_topic_num_partitions,
        replication_factor=config.offsets_topic_replication_factor,
        settings={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )


async def ensure_journal_topic(topics: TopicChanges) -> None:
    """Create the topic unless it exists, and wait at most CREATE_TIMEOUT_S for its leaders.

    Raises KafkaError (COORDINATOR_NOT_AVAILABLE) if that fails; a later call may succeed.
    """
    if topics.view.topic(GROUP_METADATA_TOPIC) is None:
        try:
            await topics.create_by_asking(journal_topic(topics.settings.static), timeout_s=CREATE_TIMEOUT_S)
        except KafkaError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise _unavailable(topics, error) from error
        except PipelineError as error:
            raise _unavailable(topics, error) from error
    with trio.move_on_after(CREATE_TIMEOUT_S):
        await topics.view.wait_until(_is_led)


def _unavailable(topics: TopicChanges, error: PipelineError) -> KafkaError:
    reason = str(error)
    if isinstance(error, KafkaError) and error.code == ErrorCode.INVALID_REPLICATION_FACTOR:
        reason = (
            f"offsets.topic.replication.factor is {topics.settings.static.offsets_topic_replication_factor},"
            f" live brokers: {len(topics.view.brokers)}; start more, or set it lower on all brokers"
        )
    logger.error("group_journal_not_created", error=reason)
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{GROUP_METADATA_TOPIC} cannot be made: {reason}")


def _is_led(view: ClusterView) -> bool:
    topic = view.applied(GROUP_METADATA_TOPIC)
    return topic is not None and topic.is_led
