"""Differences between the settings in force and other ones, and what the latter would do to topics. Pure."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from pipeline.mirror.config import FlowConfig, MirrorConfig, SourceConfig
from pipeline.mirror.topics.flows import SourceFlows
from pipeline.model import HostPort
from pipeline.settings import SettingsModel

RESTART_SETTINGS = ("http.", "destination.", "zookeeper.", "mirror.", "datacenter", "audit.")
"""Settings, or beginnings of their names, that a running mirror cannot change."""


def version_of(config: MirrorConfig) -> str:
    """Return a short text that is the same for equal settings, and differs for others."""
    text = json.dumps(config.model_dump(mode="json", by_alias=True), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def selection_of(config: MirrorConfig) -> str:
    """Return a short text that is the same for settings which select the same topics in the same way."""
    flows = [[flow.source, flow.topics, flow.exclude, flow.replica_topic] for flow in _flows(config)]
    text = json.dumps([[source.name for source in config.sources], flows])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changed_settings(now: SettingsModel, new: SettingsModel, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the settings in which two models differ, each with its running and its new value."""
    return [
        {"setting": str(field.alias), "running": _shown(before), "new": _shown(after)}
        for name, field in type(now).model_fields.items()
        for before, after in [(getattr(now, name), getattr(new, name))]
        if before != after and str(field.alias) not in without
    ]


def needs_restart(setting: str) -> bool:
    """Return True if a running mirror cannot change the setting."""
    return setting.startswith(RESTART_SETTINGS)


def is_opened_anew(now: SourceConfig, new: SourceConfig) -> bool:
    """Return True if the change of a source interrupts the copying of its partitions."""
    return now.bootstrap != new.bootstrap


def source_changes(now: MirrorConfig, new: MirrorConfig) -> list[dict[str, Any]]:
    """Return the sources that are added, removed or changed, and those whose copying is restarted for it."""
    before, after = ({each.name: each for each in config.sources} for config in (now, new))
    found: list[dict[str, Any]] = [
        {"name": name, "change": "remove", "settings": []} for name in before.keys() - after.keys()
    ]
    for name, source in after.items():
        if name not in before:
            found.append({"name": name, "change": "add", "settings": []})
        elif before[name] != source:
            change = "restart" if is_opened_anew(before[name], source) else "change"
            found.append({"name": name, "change": change, "settings": changed_settings(before[name], source)})
    return sorted(found, key=lambda each: str(each["name"]))


def flow_changes(now: MirrorConfig, new: MirrorConfig) -> list[dict[str, Any]]:
    """Return the flows that are added, removed or changed, with values that they have from the mirror."""
    before, after = ({flow.name: flow for flow in _flows(config)} for config in (now, new))
    found = []
    for name in sorted(before.keys() | after.keys()):
        flow = after.get(name) or before[name]
        if name not in before or name not in after:
            change, settings = "add" if name in after else "remove", []
        else:
            change, settings = "change", changed_settings(before[name], flow)
            if not settings:
                continue
        found.append({"name": name, "source": flow.source, "change": change, "settings": settings})
    if not found and [flow.name for flow in _flows(now)] != [flow.name for flow in _flows(new)]:
        return [{"name": flow.name, "source": flow.source, "change": "move", "settings": []} for flow in _flows(new)]
    return found


def topic_changes(
    source: str,
    partitions: Mapping[str, int],
    before: SourceFlows | None,
    after: SourceFlows | None,
    recorded: Callable[[str], str | None],
    *,
    is_restarted: bool,
) -> list[dict[str, Any]]:
    """Return the topics of a source that would start, stop, restart, be renamed or come into another flow.

    `partitions`: the number of partitions of each topic. `recorded` returns the replica that the partition table has
    for a topic. It stays the replica, whatever the settings say.
    """
    found = []
    for topic, count in sorted(partitions.items()):
        old = None if before is None else before.flow_of(topic)
        new = None if after is None else after.flow_of(topic)
        entry: dict[str, Any] = {"source": source, "topic": topic, "partitions": count}
        if old is None and new is None:
            continue
        if new is None and old is not None:
            found.append(entry | {"change": "stop", "flow": old.name, "replica": recorded(topic)})
            continue
        assert new is not None
        replica = recorded(topic) or new.replica_of(topic)
        refusal = None if recorded(topic) else new.refusal_of(topic)
        entry |= {"flow": new.name, "replica": replica}
        if refusal is not None:
            entry["remark"] = f"not copied: {refusal}"
        elif replica != new.replica_of(topic):
            entry["remark"] = f"keeps its replica {replica}; the setting asks for {new.replica_of(topic)}"
        if old is None:
            found.append(entry | {"change": "start"})
        elif is_restarted:
            found.append(entry | {"change": "restart"})
        elif old.replica_of(topic) != new.replica_of(topic):
            found.append(entry | {"change": "keep" if recorded(topic) else "rename"})
        elif old.name != new.name:
            found.append(entry | {"change": "move", "from_flow": old.name})
    return found


def _flows(config: MirrorConfig) -> Sequence[FlowConfig]:
    """Return the flows, also those that `topics` without flows stands for, with the values of the mirror."""
    if config.flows:
        return [
            flow.model_copy(
                update={
                    "gap_policy": flow.gap_policy or config.gap_policy,
                    "compression_type": flow.compression_type or config.compression_type,
                }
            )
            for flow in config.flows
        ]
    return [
        FlowConfig.model_construct(
            name=source.name,
            source=source.name,
            topics=config.topics,
            exclude=config.exclude,
            gap_policy=config.gap_policy,
            compression_type=config.compression_type,
        )
        for source in config.sources
    ]


def _shown(value: object) -> object:
    match value:
        case HostPort():
            return str(value)
        case Enum():
            return value.value
        case tuple():
            return [_shown(each) for each in value]
        case _:
            return value
