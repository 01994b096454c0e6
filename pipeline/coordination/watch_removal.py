"""A watch that nobody waits for is taken back: ZooKeeper's `removeWatches` (3.5), which kazoo does not know. Pure.

A record as kazoo sends it: `serialize` gives what follows the request header. The answer has no body. ZooKeeper answers
with an error if there is no such watch, which kazoo raises.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

_ANY_KIND = 3
_INT = struct.Struct("!i")


@dataclass(frozen=True, slots=True)
class WatchRemoval:
    """All watches of this client on a znode, which may be missing. `on_removed` is called in the order of answers."""

    path: str
    on_removed: Callable[[str], object]

    @property
    def type(self) -> int:
        """The operation code."""
        return 18

    def serialize(self) -> bytes:
        """The path, and the kind of watch."""
        name = self.path.encode()
        return _INT.pack(len(name)) + name + _INT.pack(_ANY_KIND)

    def deserialize(self, _buffer: bytes, _offset: int) -> None:
        """Note that the watch is removed; nothing follows the reply header."""
        self.on_removed(self.path)
