"""Filters that Spark hands to a batch read, by which partitions and offsets are left out. Pure.

Spark applies all filters to the rows as well, so a filter that is not understood here is no error. It hands over
filters only with `spark.sql.python.filterPushdown.enabled`, from PySpark 4.1 on; they are known by the names of their
classes, which PySpark 4.0 lacks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import eq, ge, gt, le, lt
from typing import Any, Final

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": eq,
    "EqualNullSafe": eq,
    "GreaterThan": gt,
    "GreaterThanOrEqual": ge,
    "LessThan": lt,
    "LessThanOrEqual": le,
    "In": lambda value, values: value in values,
    "StringStartsWith": lambda value, text: value.startswith(text),
    "StringEndsWith": lambda value, text: value.endswith(text),
    "StringContains": lambda value, text: text in value,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a column with a value."""

    column: str
    comparison: str
    value: Any

    def allows(self, value: object) -> bool:
        """Return True if a row with this value of the column may pass."""
        return _COMPARISONS[self.comparison](value, self.value)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions that all rows fulfil."""

    conditions: tuple[Condition, ...] = ()

    @classmethod
    def of(cls, filters: Iterable[Any]) -> "Conditions":
        """Take the filters of PySpark that are understood."""
        found = []
        for each in filters:
            path: tuple[str, ...] = getattr(each, "attribute", ())
            value, kind = getattr(each, "value", None), type(each).__name__
            if len(path) == 1 and kind in _COMPARISONS and value is not None:
                found.append(Condition(path[0], kind, value))
        return cls(tuple(found))

    def allows(self, topic: str, partition: int) -> bool:
        """Return True if records of the partition may pass."""
        values = {"topic": topic, "partition": partition}
        return all(each.allows(values[each.column]) for each in self.conditions if each.column in values)

    def clip(self, start: int, end: int) -> tuple[int, int]:
        """Return the offsets of [start, end) that may pass."""
        for each in self.conditions:
            if each.column != "offset":
                continue
            match each.comparison:
                case "EqualTo" | "EqualNullSafe":
                    start, end = max(start, each.value), min(end, each.value + 1)
                case "GreaterThan":
                    start = max(start, each.value + 1)
                case "GreaterThanOrEqual":
                    start = max(start, each.value)
                case "LessThan":
                    end = min(end, each.value)
                case "LessThanOrEqual":
                    end = min(end, each.value + 1)
                case "In" if each.value:
                    start, end = max(start, min(each.value)), min(end, max(each.value) + 1)
        return start, max(start, end)

    @property
    def since_ms(self) -> int | None:
        """Time before which no record may pass, rounded down to ms. Later records may be older: there is no end."""
        kinds = {"EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"}
        times = [each.value for each in self.conditions if each.column == "timestamp" and each.comparison in kinds]
        return max((_milliseconds(time) for time in times if isinstance(time, datetime)), default=None)


def _milliseconds(time: datetime) -> int:
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)
