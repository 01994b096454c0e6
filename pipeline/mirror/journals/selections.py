"""Selections: the topics that mirrors copy by their settings. Pure: a fold over a compacted topic of the hub.

A mirror records its selection before it copies anything, and again when its settings change. So an audit knows what the
hub should hold, also while the mirror is down, or has never come to a topic.

Invariants:
A. A selection is text in portions, whose keys are the mirror's name and the number of the portion. The selection counts
   once all portions of one text were read; the selection before counts until then.
B. Selections of several mirrors add up: a topic that one of them selects should be copied.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pipeline.errors import PipelineError
from pipeline.mirror.journals.record_document import MAX_TIME_MS, RecordDocument
from pipeline.provenance import MAX_NAME_LENGTH

SELECTIONS_TOPIC: Final = "_mirror_selections"
RECORD_VERSION: Final = 1
MAX_MIRROR_NAME: Final = 1_000
PORTION_LENGTH: Final = 7_000
"""Characters of a portion. Each takes at most two bytes of the record, since quotes and backslashes are escaped."""
MAX_PORTIONS: Final = 600
"""Portions of a selection: about 4 MB, more than 10,000 flows take."""
MAX_MIRRORS: Final = 1_000
MAX_FLOWS: Final = 100_000
MAX_PATTERN: Final = MAX_PORTIONS * PORTION_LENGTH
_INCOMPLETE: Final = "the selection is not complete: restart the mirror, which records it again"


class SelectionRecordError(PipelineError):
    """A record of the topic is no portion of a selection, or a selection cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedFlow:
    """Patterns of a flow, and the template of the names of its replicas, as in the mirror's settings."""

    name: str
    source: str
    topics: Sequence[str]
    exclude: Sequence[str] = ()
    replica_topic: str = "{topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorSelection:
    """Sources and flows of a mirror, in the order of its settings. `mode` is that of `destination.mode`."""

    mode: str
    sources: Sequence[str]
    flows: Sequence[SelectedFlow]

    def encode(self, mirror: str, time_ms: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values of the records. A selection that is too large is recorded as one without a text."""
        text = json.dumps(asdict(self), separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        starts = range(0, len(text), PORTION_LENGTH)
        portions = len(starts) if len(starts) <= MAX_PORTIONS else 0
        return [
            (
                f"{mirror}/{number}".encode(),
                json.dumps(
                    {
                        "version": RECORD_VERSION,
                        "time_ms": time_ms,
                        "digest": digest,
                        "portions": portions,
                        "text": text[start : start + PORTION_LENGTH] if portions else "",
                    },
                    separators=(",", ":"),
                ).encode(),
            )
            for number, start in enumerate(starts[: portions or 1])
        ]


@dataclass(slots=True)
class _Portions:
    """Portions of one mirror's selection as far as they were read: digest, number of portions and text by number."""

    texts: dict[int, tuple[str, int, str]] = field(default_factory=dict)
    selection: MirrorSelection | None = None
    time_ms: int = 0
    trouble: str | None = None
    """Why the newest selection is not known; None if it is."""


class Selections:
    """The selections of a hub's mirrors, as far as their topic was read."""

    def __init__(self) -> None:
        self._mirrors: dict[str, _Portions] = {}
        self.revision = 0
        """Grows whenever a selection may have changed."""

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply the next record; one without value removes a portion.

        Raises SelectionRecordError, and changes nothing then. A selection whose portions are complete and cannot be
        read makes its mirror one of `troubles`.
        """
        mirror, number = _decode_key(key)
        if value is None:
            self._remove(mirror, number)
            return
        document = RecordDocument(value, SelectionRecordError)
        document.version(newest=RECORD_VERSION)
        time_ms, portions = document.number("time_ms", MAX_TIME_MS), document.number("portions", MAX_PORTIONS)
        digest = document.text("digest", 100)
        text = document.text("text", PORTION_LENGTH, min_length=0)
        if number >= max(portions, 1):
            raise SelectionRecordError(f"the key has portion {number} of {portions}")
        if mirror not in self._mirrors and len(self._mirrors) >= MAX_MIRRORS:
            raise SelectionRecordError(f"there are selections of {MAX_MIRRORS} mirrors already")
        known = self._mirrors.setdefault(mirror, _Portions())
        known.texts[number] = (digest, portions, text)
        known.time_ms = max(known.time_ms, time_ms)
        self.revision += 1
        if portions == 0:
            known.trouble = "the selection is too large to be recorded: simplify the mirror's flows"
            return
        parts = [known.texts.get(each, ("", 0, "")) for each in range(portions)]
        if any(part[:2] != (digest, portions) for part in parts):
            known.trouble = _INCOMPLETE
            return
        try:
            known.selection, known.trouble = _decode("".join(part[2] for part in parts), digest), None
        except SelectionRecordError as error:
            known.trouble = f"the selection cannot be read: it {error}. Upgrade this program, or restart the mirror"

    def _remove(self, mirror: str, number: int) -> None:
        known = self._mirrors.get(mirror)
        if known is None or known.texts.pop(number, None) is None:
            return
        self.revision += 1
        if number == 0:
            del self._mirrors[mirror]
        elif number < known.texts.get(0, ("", 0, ""))[1]:
            known.trouble = _INCOMPLETE

    def of(self, mirror: str) -> MirrorSelection | None:
        """Return the selection of a mirror; None if it is not known, or not the newest one."""
        known = self._mirrors.get(mirror)
        return None if known is None or known.trouble is not None else known.selection

    def known(self) -> Mapping[str, MirrorSelection]:
        """Return by mirror the selections that count, those before incomplete ones included."""
        return {name: known.selection for name, known in self._mirrors.items() if known.selection is not None}

    def times_ms(self) -> Mapping[str, int]:
        """Return by mirror when it recorded its selection."""
        return {name: known.time_ms for name, known in self._mirrors.items()}

    def troubles(self) -> Mapping[str, str]:
        """Return by mirror why its newest selection is not known."""
        return {name: known.trouble for name, known in self._mirrors.items() if known.trouble is not None}

    def removal_of(self, mirror: str) -> list[tuple[bytes, bytes | None]]:
        """Return the records that remove the selection of a mirror; none if there is none.

        The first portion is the last to go: a removal that comes half way can be repeated.
        """
        return [(f"{mirror}/{number}".encode(), None) for number in sorted(self._numbers(mirror), reverse=True)]

    def replacement_of(self, mirror: str, selection: MirrorSelection, time_ms: int) -> list[tuple[bytes, bytes | None]]:
        """Return the records that put a selection in place of the mirror's one."""
        portions: list[tuple[bytes, bytes | None]] = [*selection.encode(mirror, time_ms)]
        left = sorted(number for number in self._numbers(mirror) if number >= len(portions))
        return [*portions, *((f"{mirror}/{number}".encode(), None) for number in left)]

    def _numbers(self, mirror: str) -> Sequence[int]:
        known = self._mirrors.get(mirror)
        return () if known is None else tuple(known.texts)


def _decode_key(key: bytes | None) -> tuple[str, int]:
    try:
        mirror, _, number = (key or b"").decode().rpartition("/")
    except UnicodeDecodeError:
        raise SelectionRecordError("the key is not text") from None
    is_name = 0 < len(mirror) <= MAX_MIRROR_NAME and mirror.isprintable()
    if not is_name or not (number.isascii() and number.isdecimal() and len(number) <= 4) or int(number) >= MAX_PORTIONS:
        raise SelectionRecordError("the key is no mirror and portion")
    return mirror, int(number)


def _decode(text: str, digest: str) -> MirrorSelection:
    """Return the selection in a text. Unknown fields are ignored. Raises SelectionRecordError."""
    if hashlib.sha256(text.encode()).hexdigest()[:16] != digest:
        raise SelectionRecordError("has another checksum than its records say")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SelectionRecordError("is not JSON") from error
    if not isinstance(fields, dict):
        raise SelectionRecordError("is not a JSON object")
    flows = fields.get("flows")
    if not isinstance(flows, list) or len(flows) > MAX_FLOWS or not all(isinstance(flow, dict) for flow in flows):
        raise SelectionRecordError("has no list of flows")
    return MirrorSelection(
        mode=_text(fields, "mode"),
        sources=_texts(fields, "sources", MAX_NAME_LENGTH),
        flows=tuple(
            SelectedFlow(
                name=_text(flow, "name"),
                source=_text(flow, "source"),
                topics=_texts(flow, "topics", MAX_PATTERN),
                exclude=_texts(flow, "exclude", MAX_PATTERN),
                replica_topic=_text(flow, "replica_topic"),
            )
            for flow in flows
        ),
    )


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_LENGTH:
        raise SelectionRecordError(f"has no text `{name}`")
    return value


def _texts(fields: Mapping[str, Any], name: str, max_length: int) -> tuple[str, ...]:
    values = fields.get(name)
    if not isinstance(values, list) or not all(isinstance(each, str) and len(each) <= max_length for each in values):
        raise SelectionRecordError(f"has no list of texts `{name}`")
    return tuple(values)
