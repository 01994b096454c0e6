"""Keys of rows: topic, partition and life in one 64-bit integer, so that tables are sorted arrays. Pure.

Topics and lives are numbered by first appearance. `life` is the life of a producer, mirror or member of a group; of
tiers without lives it is the id of the topic, by which the topic and the one that was created again differ.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

LIFE_BITS: Final = 26
PARTITION_BITS: Final = 17
MAX_LEDGER_TOPICS: Final = 1 << 20
MAX_LEDGER_LIVES: Final = 1 << LIFE_BITS
MAX_LEDGER_PARTITIONS: Final = 100_000
"""Partitions of a topic. Rows of higher partitions are refused."""


def row_keys(topics: Int64s, partitions: Int64s, life: int | Int64s) -> Int64s:
    """Return the keys of rows, sorted as (topic, partition, life)."""
    return (topics << (PARTITION_BITS + LIFE_BITS)) | (partitions << LIFE_BITS) | life


def row_key(topic: int, partition: int, life: int = 0) -> int:
    """Return the key of one row."""
    return (topic << (PARTITION_BITS + LIFE_BITS)) | (partition << LIFE_BITS) | life


def cells_of(keys: Int64s) -> Int64s:
    """Return the cells (topic and partition) of keys."""
    return keys >> LIFE_BITS


def cell_key(topic: int, partition: int) -> int:
    """Return the cell of a partition."""
    return (topic << PARTITION_BITS) | partition


def topics_of_cells(cells: Int64s) -> Int64s:
    """Return the topics' numbers."""
    return cells >> PARTITION_BITS


def places_of_topic(cells: Int64s, topic: int) -> slice:
    """Return the places of a topic's cells among sorted ones."""
    first, after = np.searchsorted(cells, [cell_key(topic, 0), cell_key(topic + 1, 0)]).tolist()
    return slice(first, after)


def each_once(values: Int64s) -> Int64s:
    """Return values sorted, each once: `np.unique`, faster for those that are nearly sorted."""
    if len(values) > 1 and not (values[1:] > values[:-1]).all():
        values = np.sort(values, kind="stable")
        values = values[np.concatenate([[True], values[1:] != values[:-1]])]
    return values


class Numbering:
    """Numbers of names, by first appearance, up to a bound."""

    def __init__(self, bound: int) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._bound = bound

    def number(self, name: str) -> int:
        """Return the number of a name; -1 if there are too many names."""
        found = self._numbers.get(name)
        if found is None:
            if len(self.names) >= self._bound:
                return -1
            found = self._numbers[name] = len(self.names)
            self.names.append(name)
        return found

    def known(self, name: str) -> int:
        """Return the number of a name; -1 if the name never appeared."""
        return self._numbers.get(name, -1)
