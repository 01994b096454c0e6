"""Requests of ZooKeeper that kazoo does not know: `multiRead` (3.6) and `removeWatches` (3.5). Pure.

Records as kazoo sends and reads them: `serialize` returns what follows the request header, `deserialize` takes what
follows the reply header. Source: ZooKeeper's `MultiOperationRecord` and `MultiResponse`.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.coordination.interface import NodeValue

NO_NODE = -101

_GET_DATA = 4
_ERROR = -1
_HEADER = struct.Struct("!iBi")
_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_VERSION_FIELD = 4
_END = _HEADER.pack(-1, True, -1)
_ANY_WATCH = 3


@dataclass(frozen=True, slots=True)
class MultiRead:
    """Reads data and versions of znodes."""

    paths: Sequence[str]

    @property
    def type(self) -> int:
        """The operation code."""
        return 22

    def serialize(self) -> bytes:
        """Encode a header, a path and "no watch" for each znode, then the header that ends the request."""
        parts: list[bytes] = []
        for path in self.paths:
            name = path.encode()
            parts += (_HEADER.pack(_GET_DATA, False, -1), _INT.pack(len(name)), name, b"\0")
        return b"".join(parts) + _END

    @classmethod
    def deserialize(cls, buffer: bytes, offset: int) -> list[NodeValue | int]:
        """Return the value of each path, or the code of an error. Raises ValueError."""
        answers: list[NodeValue | int] = []
        while True:
            kind, is_end, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if is_end:
                return answers
            (number,) = _INT.unpack_from(buffer, offset)
            offset += _INT.size
            if kind == _ERROR:
                answers.append(number)
            elif kind == _GET_DATA:
                end = offset + max(number, 0)
                stat = _STAT.unpack_from(buffer, end)
                answers.append(NodeValue(bytes(buffer[offset:end]), stat[_VERSION_FIELD]))
                offset = end + _STAT.size
            else:
                raise ValueError(f"an answer of kind {kind} within that of a multiRead")


@dataclass(frozen=True, slots=True)
class WatchRemoval:
    """Removes all watches of this client on a znode. `on_removed` is called in the order of answers.

    The answer has no body. ZooKeeper answers with an error if there is no such watch, which kazoo raises.
    """

    path: str
    on_removed: Callable[[str], object]

    @property
    def type(self) -> int:
        """The operation code."""
        return 18

    def serialize(self) -> bytes:
        """Encode the path, and the kind of watch."""
        name = self.path.encode()
        return _INT.pack(len(name)) + name + _INT.pack(_ANY_WATCH)

    def deserialize(self, _buffer: bytes, _offset: int) -> None:
        """Note that the watch is removed; nothing follows the reply header."""
        self.on_removed(self.path)
