"""Changes settings of topics and brokers: decides, writes to ZooKeeper by compare-and-set, then waits.

A change is decided again on the stored settings if another writer was quicker, or if ZooKeeper's answer was lost:
operations name the wanted state, so that repeating one changes nothing. A change returns when this broker sees it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from pipeline.broker.cluster.view import ClusterView, TopicView
from pipeline.broker.failures import Failure, failure_of
from pipeline.broker.runtime.slicing import Turns
from pipeline.broker.settings.dynamic import DynamicSettings
from pipeline.broker.settings.entries import LISTS, broker_entries, topic_entries
from pipeline.broker.settings.topic import KEEPING_ALL, readable_settings, topic_settings
from pipeline.broker.topics.changes import time_to_write
from pipeline.broker.topics.plan import check_topic_name
from pipeline.coordination.interface import CoordinationClient, NodeValue
from pipeline.coordination.update import update
from pipeline.coordination.znodes import (
    ALL_BROKERS,
    broker_config_path,
    decode_config,
    encode_config,
    topic_config_path,
    topic_path,
)
from pipeline.errors import NodeContendedError, NoNodeError, PipelineError
from pipeline.promotion import MIRROR_PROMOTED, Promotion
from pipeline.protocol.errors import ErrorCode, KafkaError
from pipeline.protocol.messages.alter_configs import AlterConfigsResourceResponse
from pipeline.protocol.messages.describe_configs import DescribeConfigsResourceResult, ResourceType
from pipeline.protocol.messages.incremental_alter_configs import AlterableConfig, AlterConfigsResource, OperationType
from pipeline.provenance import MIRROR_PARTITIONS, Provenance

TIMEOUT_S = 10.0
TOTAL_TIMEOUT_S = 30.0
"""Time for all resources of a request."""
MAX_OPERATIONS = 1000
"""Bound for one resource, which has a tenth as many settings."""
RESOURCES_AT_ONCE = 40
"""Resources that are refused before other requests have a turn."""

Overrides = Mapping[str, str]
Decide = Callable[[Overrides], Overrides]
"""A function from the stored overrides to the wanted ones. Raises KafkaError."""
_OF_LISTS = frozenset({OperationType.APPEND, OperationType.SUBTRACT})


def apply_operations(
    stored: Overrides, operations: Iterable[AlterableConfig], effective: Mapping[str, str | None]
) -> dict[str, str]:
    """Return the overrides after these operations; `effective` holds the lists that are not overridden."""
    changed = dict(stored)
    for operation in operations:
        name, value, kind = operation.name, operation.value, operation.config_operation
        if kind == OperationType.DELETE:
            changed.pop(name, None)
        elif value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {name}")
        elif kind == OperationType.SET:
            changed[name] = value
        elif kind not in _OF_LISTS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operation type {kind}")
        elif name not in LISTS:
            reason = f"Can't {OperationType(kind).name} to key {name} because its type is not LIST."
            raise KafkaError(ErrorCode.INVALID_CONFIG, reason)
        else:
            present, named = _items(changed.get(name, effective.get(name) or "")), _items(value)
            if kind == OperationType.APPEND:
                items = present + [item for item in named if item not in present]
            else:
                items = [item for item in present if item not in named]
            changed[name] = ",".join(items)
    return changed


def _items(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(",")) if item]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The znode of overrides, which counts only while the znode `owner` exists.

    If ZooKeeper lost the znode of an existing owner, `known` counts.
    """

    path: str
    owner: str | None = None
    known: Callable[[], Overrides] = dict


def _known_overrides(topic: TopicView | None) -> Overrides:
    """Return the overrides of a topic whose settings ZooKeeper lost."""
    if topic is None:
        return {}
    return KEEPING_ALL if topic.keeps_all else topic.overrides


def _check_topic(stored: Overrides, wanted: Overrides, settings: DynamicSettings) -> None:
    """Check the wanted overrides, except unusable ones that are stored already: they do not block other changes."""
    _, unusable = readable_settings(stored, settings.current)
    kept = {key for key in unusable if wanted.get(key) == stored[key]}
    try:
        topic_settings({key: value for key, value in wanted.items() if key not in kept}, settings.current)
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from error
    if MIRROR_PARTITIONS in stored.keys() & wanted.keys() - unusable:
        _check_entries_stay(Provenance.parse(stored[MIRROR_PARTITIONS]), Provenance.parse(wanted[MIRROR_PARTITIONS]))
    if MIRROR_PROMOTED in stored.keys() & wanted.keys() - unusable:
        _check_promotion_stays(Promotion.parse(stored[MIRROR_PROMOTED]), Promotion.parse(wanted[MIRROR_PROMOTED]))


def _check_promotion_stays(stored: Promotion, wanted: Promotion) -> None:
    """Refuse a second promotion, which would record later ends of the copies than the first one."""
    if not stored.may_become(wanted):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{MIRROR_PROMOTED}: the topic was promoted at {stored.time}, and the record of it does not change. "
            "Read the setting again.",
        )


def _check_entries_stay(stored: Provenance, wanted: Provenance) -> None:
    """Refuse a `mirror.partitions` from a mirror that lost its table, or has not seen the entries of another one."""
    changed = wanted.changed_since(stored)
    if changed is not None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{MIRROR_PARTITIONS}: partition {changed} is a copy of {stored.origin_of(changed)}, and stays one. "
            "Read the setting again and add entries to it. To replace it, delete it first.",
        )


@dataclass(frozen=True, slots=True)
class ConfigChanges:
    """Changes of the settings of topics and of this broker, made by this broker."""

    zookeeper: CoordinationClient
    view: ClusterView
    settings: DynamicSettings

    async def alter_all(
        self, changes: Sequence[AlterConfigsResource], *, replace: bool, validate_only: bool
    ) -> list[AlterConfigsResourceResponse]:
        """Change each resource as a whole or not at all, and return the results in their order.

        With `replace`, settings that a change does not name fall back to their defaults.
        """
        await trio.lowlevel.checkpoint()  # the caller may have built very many changes in this turn
        named = Counter((change.resource_type, change.resource_name) for change in changes)
        await trio.lowlevel.checkpoint()
        results = []
        turns = Turns(RESOURCES_AT_ONCE)
        deadline = trio.current_time() + TOTAL_TIMEOUT_S
        for change in changes:
            try:
                if named[change.resource_type, change.resource_name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                if trio.current_time() > deadline:
                    raise trio.TooSlowError
                with trio.fail_at(deadline):
                    await self._alter(change, replace=replace, validate_only=validate_only)
            except trio.TooSlowError:
                failure = Failure(
                    ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not take all settings in time; try again."
                )
            except PipelineError as error:
                failure = failure_of(error)
            else:
                failure = Failure(ErrorCode.NONE, None)
            results.append(
                AlterConfigsResourceResponse(
                    error_code=failure.code,
                    error_message=failure.message,
                    resource_type=change.resource_type,
                    resource_name=change.resource_name,
                )
            )
            await turns.after()
        return results

    async def _alter(self, change: AlterConfigsResource, *, replace: bool, validate_only: bool) -> None:
        if len(change.configs) > MAX_OPERATIONS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Alter at most {MAX_OPERATIONS} settings of a resource at a time."
            )
        if any(count > 1 for count in Counter(operation.name for operation in change.configs).values()):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
        entries: Callable[[DynamicSettings], Iterable[DescribeConfigsResourceResult]]
        match change.resource_type:
            case ResourceType.TOPIC:
                entries, alter = partial(topic_entries, {}), self._alter_topic
            case ResourceType.BROKER:
                entries, alter = broker_entries, self._alter_broker
            case other:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {other}")
        is_of_lists = any(operation.config_operation in _OF_LISTS for operation in change.configs)
        effective = {entry.name: entry.value for entry in entries(self.settings)} if is_of_lists else {}

        def decide(stored: Overrides) -> Overrides:
            return apply_operations({} if replace else stored, change.configs, effective)

        await alter(change.resource_name, decide, validate_only=validate_only)

    async def _alter_topic(self, name: str, decide: Decide, *, validate_only: bool) -> None:
        check_topic_name(name)

        def decide_and_check(stored: Overrides) -> Overrides:
            wanted = decide(stored)
            _check_topic(stored, wanted, self.settings)
            return wanted

        def is_seen(view: ClusterView) -> bool:
            topic = view.topic(name)
            return topic is None or version is None or topic.overrides_version >= version

        place = _Place(
            path=topic_config_path(name),
            owner=topic_path(name),
            known=lambda: _known_overrides(self.view.topic(name)),
        )
        version = await self._write(place, decide_and_check, validate_only=validate_only)
        with trio.move_on_after(TIMEOUT_S):
            await self.view.wait_until(is_seen)

    async def _alter_broker(self, name: str, decide: Decide, *, validate_only: bool) -> None:
        level = self.level_of(name)

        def decide_and_check(stored: Overrides) -> Overrides:
            wanted = decide(stored)
            try:
                self.settings.check(level, wanted)
            except ValueError as error:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
            return wanted

        version = await self._write(
            _Place(path=broker_config_path(level)), decide_and_check, validate_only=validate_only
        )
        if version is not None:
            with trio.move_on_after(TIMEOUT_S):
                await self.settings.wait_for(level, version)

    def level_of(self, name: str) -> str:
        """Return the name under which a broker's overrides are stored. Raises INVALID_REQUEST for another broker's."""
        if not name:
            return ALL_BROKERS
        own = self.settings.static.broker_id
        if name == str(own):  # one spelling alone: a request must not name a broker a thousand times
            return name
        try:
            int(name)
        except ValueError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from error
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own} or empty string, but received {name}"
        )

    async def _write(self, place: _Place, decide: Decide, *, validate_only: bool) -> int | None:
        """Return the version of the stored overrides, None if there are none."""

        def decide_data(found: NodeValue | None) -> bytes | None:
            stored = place.known() if found is None else decode_config(place.path, found.data)
            wanted = decide(stored)
            is_lost = found is None and place.owner is not None
            return None if validate_only or (wanted == stored and not is_lost) else encode_config(wanted)

        with time_to_write(TIMEOUT_S):
            try:
                value = await update(self.zookeeper, place.path, decide_data, place.owner)
            except NoNodeError as error:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) from error
            except NodeContendedError as error:
                reason = "ZooKeeper did not take the settings; try again."
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, reason) from error
        return None if value is None else value.version
