"""A shelf in memory, for ledgers of tests."""

from collections.abc import Iterable


class MemoryShelf:
    """A shelf in memory, whose places are never given out twice."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.kept: set[tuple[int, int]] = set()

    def put(self, data: bytes | memoryview) -> int | None:
        place = len(self.data)
        self.data += data
        self.kept.add((place, len(data)))
        return place

    def put_parts(self, parts: Iterable[bytes | memoryview], size: int) -> int | None:
        data = b"".join(parts)
        assert len(data) == size
        return self.put(data)

    def get(self, place: int, size: int) -> bytes:
        assert any(start <= place and place + size <= start + length for start, length in self.kept), "was dropped"
        return bytes(self.data[place : place + size])

    def drop(self, place: int, size: int) -> None:
        self.kept.remove((place, size))
