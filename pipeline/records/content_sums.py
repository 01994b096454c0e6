"""Sums over the contents of the batches of a window, as loads keep them. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from pipeline.records.tally import CRC_SUM_MODULUS

Key = TypeVar("Key")


class ContentSums(NamedTuple):
    """Sums of `batch_hashes` over batches, modulo 2**64, and the lowest and highest offset of the batches.

    `batches` says how many they are: sums that lack a batch are not those of its window.
    """

    batches: int
    content_sum: int
    place_sum: int
    first_offset: int
    last_offset: int

    def plus(self, other: "ContentSums") -> "ContentSums":
        """Return the sums of both."""
        return ContentSums(
            batches=self.batches + other.batches,
            content_sum=(self.content_sum + other.content_sum) % CRC_SUM_MODULUS,
            place_sum=(self.place_sum + other.place_sum) % CRC_SUM_MODULUS,
            first_offset=min(self.first_offset, other.first_offset),
            last_offset=max(self.last_offset, other.last_offset),
        )


def add_content_sums(terms: Iterable[Mapping[Key, ContentSums]]) -> dict[Key, ContentSums]:
    """Add sums up by key."""
    found: dict[Key, ContentSums] = {}
    for sums in terms:
        for key, value in sums.items():
            found[key] = found[key].plus(value) if key in found else value
    return found
