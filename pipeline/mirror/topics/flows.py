"""Flows: which topics of a source are copied, and into which replica topics. Pure.

Invariants:
A. A topic belongs to the first flow of the settings that selects it, so a source partition has one replica.
B. The name of a replica begins with `_` if, and only if, that of its source topic does. Audits do not count such
   topics.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.mirror.config import CompressionType, GapPolicy, MirrorConfig
from pipeline.mirror.journals.selections import MirrorSelection, SelectedFlow
from pipeline.mirror.journals.table import refusal_of_topic
from pipeline.mirror.selection import UNDERSCORE, Matches, TopicSelection, compile_patterns, matches_whole

MAX_REMEMBERED = 200_000
"""Names of topics whose flows a source's selection remembers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A declared flow. `template` is `replica.topic` of the settings."""

    name: str
    source: str
    selection: TopicSelection
    template: str
    gap_policy: GapPolicy
    compression_type: CompressionType = CompressionType.PRODUCER
    throttle_bytes_per_s: int | None = None

    def replica_of(self, topic: str) -> str:
        """Return the name that the settings give to the replica of a topic."""
        return self.template.replace("{source}", self.source).replace("{topic}", topic)

    def refusal_of(self, topic: str) -> str | None:
        """Return the reason why no replica of the topic can be created; None if it can."""
        replica = self.replica_of(topic)
        refusal = refusal_of_topic(replica)
        if refusal is not None:
            return f"the name of its replica, {replica}, {refusal}: change replica.topic"
        if topic.startswith(UNDERSCORE) != replica.startswith(UNDERSCORE):  # invariant B
            return (
                f"the name of its replica would be {replica}, but the names of a topic and its replica must both begin "
                "with `_`, or neither: change replica.topic"
            )
        return None


class SourceFlows:
    """The flows of one source, in the order of the settings."""

    def __init__(self, flows: Sequence[Flow]) -> None:
        self.flows = tuple(flows)
        self._selecting: dict[str, tuple[Flow, ...]] = {}

    def replace(self, flows: Sequence[Flow]) -> None:
        """Have other flows from now on. All parts of the mirror that hold this object follow."""
        self.flows = tuple(flows)
        self._selecting.clear()

    def selecting(self, topic: str) -> tuple[Flow, ...]:
        """Return the flows that select a topic; the first one copies the topic (invariant A)."""
        found = self._selecting.get(topic)
        if found is None:
            if len(self._selecting) >= MAX_REMEMBERED:
                self._selecting.clear()
            found = self._selecting[topic] = tuple(flow for flow in self.flows if flow.selection.selects(topic))
        return found

    def flow_of(self, topic: str) -> Flow | None:
        """Return the flow that copies a topic; None if none selects it."""
        return next(iter(self.selecting(topic)), None)

    def gap_policy_of(self, topic: str) -> GapPolicy:
        """Return the treatment of gaps of a topic; that which skips nothing if no flow selects the topic."""
        flow = self.flow_of(topic)
        return GapPolicy.HALT if flow is None else flow.gap_policy


def flows_of(config: MirrorConfig, matches: Matches = matches_whole) -> Mapping[str, SourceFlows]:
    """Return the flows of each source by its name. Raises ConfigurationError for a bad pattern.

    Without `[[flows]]` each source has a flow of its own name, with the topics of the mirror.
    """
    declared: dict[str, list[Flow]] = {source.name: [] for source in config.sources}
    for number, flow in enumerate(config.flows):
        declared[flow.source].append(
            Flow(
                name=flow.name,
                source=flow.source,
                selection=TopicSelection(
                    compile_patterns(f"flows.{number}.topics", flow.topics),
                    compile_patterns(f"flows.{number}.topics.exclude", flow.exclude),
                    matches,
                ),
                template=flow.replica_topic,
                gap_policy=flow.gap_policy or config.gap_policy,
                compression_type=flow.compression_type or config.compression_type,
                throttle_bytes_per_s=flow.throttle_bytes_per_s,
            )
        )
    if not config.flows:
        include, exclude = compile_patterns("topics", config.topics), compile_patterns("topics.exclude", config.exclude)
        for name, flows in declared.items():
            selection = TopicSelection(include, exclude, matches)
            flow_of_source = Flow(
                name=name,
                source=name,
                selection=selection,
                template="{topic}",
                gap_policy=config.gap_policy,
                compression_type=config.compression_type,
            )
            flows.append(flow_of_source)
    return {name: SourceFlows(flows) for name, flows in declared.items()}


def mirror_name_of(config: MirrorConfig) -> str:
    """Return the name under which a mirror records its selection: that of its group, or one of a process of its own."""
    shares_work = config.zookeeper_connect is not None
    return config.group if shares_work else f"{config.group}@{config.http_listen}"


def selection_in(config: MirrorConfig) -> MirrorSelection:
    """Return what the settings select, for the hub's journal of selections."""
    sources = tuple(source.name for source in config.sources)
    flows = tuple(
        SelectedFlow(
            name=flow.name,
            source=flow.source,
            topics=flow.topics,
            exclude=flow.exclude,
            replica_topic=flow.replica_topic,
        )
        for flow in config.flows
    )
    if not flows:
        flows = tuple(
            SelectedFlow(name=name, source=name, topics=config.topics, exclude=config.exclude) for name in sources
        )
    return MirrorSelection(mode=config.destination_mode.value, sources=sources, flows=flows)


def flows_selected(selection: MirrorSelection, matches: Matches = matches_whole) -> Mapping[str, SourceFlows]:
    """Return the flows of a recorded selection by source. Raises ConfigurationError for a bad pattern."""
    declared: dict[str, list[Flow]] = {name: [] for name in selection.sources}
    for flow in selection.flows:
        topics = TopicSelection(
            compile_patterns("topics", flow.topics), compile_patterns("topics.exclude", flow.exclude), matches
        )
        declared.setdefault(flow.source, []).append(
            Flow(
                name=flow.name,
                source=flow.source,
                selection=topics,
                template=flow.replica_topic,
                gap_policy=GapPolicy.HALT,
            )
        )
    return {name: SourceFlows(flows) for name, flows in declared.items()}
