"""Znodes in memory: one tree, changed by one operation at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipeline.coordination.interface import (
    ANY_VERSION,
    CheckNode,
    CreateNode,
    DeleteNode,
    Operation,
    SessionId,
    SetNode,
)
from pipeline.errors import BadVersionError, CoordinationError, NodeExistsError, NoNodeError, NotEmptyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Znode:
    """Data of a znode and, as moments of the tree, when the data and the children last changed."""

    data: bytes = b""
    version: int = 0
    owner: SessionId | None = None
    changed_at: int = 0
    children_changed_at: int = 0
    children_made: int = 0
    children: frozenset[str] = frozenset()


class Znodes:
    """The tree. `changed` is called with the path of each znode that was written, followed by its parent's."""

    def __init__(self, changed: Callable[..., None]) -> None:
        self.by_path: dict[str, Znode] = {"/": Znode()}
        self._changed = changed
        self._moment = 0

    def find(self, path: str) -> Znode:
        """Return a znode. Raises NoNodeError."""
        node = self.by_path.get(path)
        if node is None:
            raise NoNodeError(path, "there is no such znode")
        return node

    def find_or_none(self, path: str) -> Znode | None:
        """Return a znode, None if there is no such znode."""
        return self.by_path.get(path)

    def children(self, path: str) -> list[str]:
        """Return the names of the znodes below a path in order, none if the path has no znode."""
        node = self.by_path.get(path)
        return [] if node is None else sorted(node.children)

    def create(self, path: str, data: bytes, owner: SessionId | None, *, sequential: bool, make_parents: bool) -> str:
        """Create a znode and return its path."""
        parent_path = _parent(path)
        if make_parents and parent_path not in self.by_path:
            self.create(parent_path, b"", None, sequential=False, make_parents=True)
        parent = self.by_path.get(parent_path)
        if parent is None:
            raise NoNodeError(path, "its parent is not there")
        if parent.owner is not None:
            raise CoordinationError(path, "ZooKeeper refused: NoChildrenForEphemeralsError")
        if sequential:
            path = f"{path}{parent.children_made:010d}"
        if path in self.by_path:
            raise NodeExistsError(path, "the znode exists already")
        now = self._tick()
        self.by_path[path] = Znode(data=data, owner=owner, changed_at=now, children_changed_at=now)
        self.by_path[parent_path] = replace(
            parent,
            children=parent.children | {_name(path)},
            children_made=parent.children_made + 1,
            children_changed_at=now,
        )
        self._changed(path, parent_path)
        return path

    def set(self, path: str, data: bytes, version: int) -> int:
        """Replace the data and return the new version."""
        node = self.check(path, version)
        self.by_path[path] = replace(node, data=data, version=node.version + 1, changed_at=self._tick())
        self._changed(path)
        return node.version + 1

    def delete(self, path: str, version: int) -> None:
        """Delete a znode without children."""
        if self.check(path, version).children:
            raise NotEmptyError(path, "has children")
        parent_path = _parent(path)
        parent = self.find(parent_path)
        del self.by_path[path]
        self.by_path[parent_path] = replace(
            parent, children=parent.children - {_name(path)}, children_changed_at=self._tick()
        )
        self._changed(path, parent_path)

    def check(self, path: str, version: int) -> Znode:
        """Return a znode of this version. Raises BadVersionError."""
        node = self.find(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(path, "was changed by another client meanwhile")
        return node

    def transaction(self, operations: Sequence[Operation], session: SessionId) -> None:
        """Carry out all operations or, raising CoordinationError, none."""
        before = dict(self.by_path)
        try:
            for operation in operations:
                self._apply(operation, session)
        except CoordinationError:
            self.by_path = before
            raise

    def _apply(self, operation: Operation, session: SessionId) -> None:
        match operation:
            case CreateNode(path=path, data=data, ephemeral=ephemeral, sequential=sequential):
                self.create(path, data, session if ephemeral else None, sequential=sequential, make_parents=False)
            case SetNode(path=path, data=data, version=version):
                self.set(path, data, version)
            case DeleteNode(path=path, version=version):
                self.delete(path, version)
            case CheckNode(path=path, version=version):
                self.check(path, version)

    def remove_ephemerals(self, session: SessionId | None) -> None:
        """Delete the znodes that belong to a session."""
        for path in [path for path, node in self.by_path.items() if session is not None and node.owner == session]:
            self.delete(path, ANY_VERSION)

    def _tick(self) -> int:
        self._moment += 1
        return self._moment


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _name(path: str) -> str:
    return path.rpartition("/")[2]
