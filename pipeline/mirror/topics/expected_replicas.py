"""Replica topics that the recorded selections of all mirrors ask for: what a hub should hold. Pure.

Invariant: topics are selected as the mirrors themselves select them: by the same patterns, within the same bounds of
time, in the same order of flows; and a topic that the partition table knows keeps its replica.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pipeline.errors import ConfigurationError
from pipeline.mirror.config import DestinationMode
from pipeline.mirror.journals.selections import MirrorSelection, Selections
from pipeline.mirror.journals.table import PartitionTable
from pipeline.mirror.selection import Matches, SlowPatternError
from pipeline.mirror.topics.flows import SourceFlows, flows_selected

MAX_SLOW_MATCHES: Final = 10
"""Matches of one mirror's patterns that may take too long before none of its patterns is tried on another topic.

A mirror counts each pattern for itself. Here a selection of many slow patterns must not stop the caller for hours.
"""


@dataclass(slots=True)
class _Rules:
    """Flows of one recorded selection by source, or why they cannot be applied."""

    selection: MirrorSelection
    matches: "_BoundedMatches"
    flows: Mapping[str, SourceFlows] = field(default_factory=dict)
    trouble: str | None = None


class ExpectedReplicas:
    """Applies the recorded selections to topics."""

    def __init__(self, selections: Selections, table: PartitionTable, matches: Matches) -> None:
        self._selections = selections
        self._table = table
        self._matches = matches
        self._revision = -1
        self._rules: dict[str, _Rules] = {}

    @property
    def has_selection(self) -> bool:
        """True if a mirror has recorded a selection."""
        return bool(self._selections.known())

    def troubles(self) -> dict[str, str]:
        """Return by mirror why its selection is not known or cannot be applied."""
        self._take_rules()
        bad = {name: rules.trouble for name, rules in self._rules.items() if rules.trouble is not None}
        return {**bad, **self._selections.troubles()}

    def is_selected_from(self, source: str) -> bool:
        """Return True if a recorded selection has the source."""
        return any(source in selection.sources for selection in self._selections.known().values())

    def keeps_offsets(self, source: str) -> bool:
        """Return True unless a mirror copies the source in append mode."""
        known = self._selections.known().values()
        return not any(source in each.sources and each.mode == DestinationMode.APPEND.value for each in known)

    def of(self, source: str, topic: str) -> tuple[list[str], str | None]:
        """Return the replicas that mirrors should make of a topic, and why that is not known; None if it is.

        Blocks for as long as the patterns take, `match_within_bound` for each at most.
        """
        self._take_rules()
        found: dict[str, None] = {}
        unknown = None
        for rules in self._rules.values():
            flows = rules.flows.get(source)
            if flows is None:
                continue
            flow = None if rules.matches.is_spent else flows.flow_of(topic)
            if rules.matches.is_spent and flow is None:
                unknown = unknown or "patterns of the mirror's flows take too long: simplify them"
            elif flow is None:
                slow = [each.selection.slow[topic] for each in flows.flows if topic in each.selection.slow]
                unknown = unknown or next(iter(slow), None)
            elif (recorded := self._table.replica_of(source, topic)) is not None:
                found[recorded] = None
            elif flow.refusal_of(topic) is not None:
                unknown = unknown or f"not copied: {flow.refusal_of(topic)}"
            else:
                found[flow.replica_of(topic)] = None
        return list(found), unknown

    def _take_rules(self) -> None:
        if self._revision == self._selections.revision:
            return
        known = self._selections.known()
        rules = {}
        for name, selection in known.items():
            before = self._rules.get(name)
            rules[name] = before if before is not None and before.selection == selection else self._compiled(selection)
        self._rules, self._revision = rules, self._selections.revision

    def _compiled(self, selection: MirrorSelection) -> _Rules:
        matches = _BoundedMatches(self._matches)
        try:
            return _Rules(selection, matches, flows_selected(selection, matches))
        except ConfigurationError as error:
            return _Rules(selection, matches, trouble=f"its selection cannot be applied: {error}")


class _BoundedMatches:
    """Matches, until MAX_SLOW_MATCHES of them took too long."""

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._slow = 0

    @property
    def is_spent(self) -> bool:
        """True if no pattern is tried any more."""
        return self._slow >= MAX_SLOW_MATCHES

    def __call__(self, pattern: re.Pattern[str], name: str) -> bool:
        if self.is_spent:
            raise SlowPatternError(pattern.pattern, name)
        try:
            return self._matches(pattern, name)
        except SlowPatternError:
            self._slow += 1
            raise
