"""A schema registry that holds what a test says, counts calls, and falls silent or talks nonsense on demand."""

import json
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import unquote

import trio

Answer = tuple[int, bytes]
NOT_FOUND = json.dumps({"error_code": 40403, "message": "not found"}).encode()


@dataclass
class ScriptedRegistry:
    """`schemas`: text, subjects and further attributes by id. `broken` is the answer to everything, unless None;
    `broken_posts` that to every POST.
    """

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    guids: dict[bytes, int] = field(default_factory=dict)
    broken: Answer | None = None
    broken_posts: Answer | None = None
    age: str | None = None
    """What the answers of a replica say of their age."""
    calls: list[str] = field(default_factory=list)
    lets_answer: trio.Event = field(default_factory=trio.Event)
    """Every answer waits for this event, which is set unless the registry is to be silent."""

    def add(self, schema_id: int, *subjects: str, text: str = '"string"', **attributes: Any) -> None:
        self.schemas[schema_id] = {"schema": text, "subjects": subjects, **attributes}

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        self.calls.append(f"{method} {path}")
        if self.broken is not None:
            return self.broken
        if method == "POST" and self.broken_posts is not None:
            return self.broken_posts
        path = unquote(path.partition("?")[0])
        if found := re.fullmatch(r"/schemas/ids/(-?\d+)(/versions)?", path):
            schema = self.schemas.get(int(found[1]))
            if schema is None:
                return 404, NOT_FOUND
            versions = [{"subject": subject, "version": 1} for subject in schema["subjects"]]
            return 200, json.dumps(versions if found[2] else _without_subjects(schema)).encode()
        if found := re.fullmatch(r"/schemas/guids/(.+)", path):
            schema_id = self.guids.get(uuid.UUID(found[1]).bytes)
            return (404, NOT_FOUND) if schema_id is None else self._text(self.schemas[schema_id])
        if method == "POST" and (found := re.fullmatch(r"/subjects/(.+)", path)):
            asked = json.loads(body)["schema"]
            hits = [s for s in self.schemas.values() if s["schema"] == asked and found[1] in s["subjects"]]
            return (200, b'{"id": 1}') if hits else (404, NOT_FOUND)
        if found := re.fullmatch(r"/subjects/(.+)/versions/1", path):
            hits = [schema for schema in self.schemas.values() if found[1] in schema["subjects"]]
            return self._text(hits[0]) if hits else (404, NOT_FOUND)
        return 404, b"no such page"

    def _text(self, schema: dict[str, Any]) -> Answer:
        return 200, json.dumps(_without_subjects(schema)).encode()


def _without_subjects(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "subjects"}


async def _serve(registry: ScriptedRegistry, stream: trio.SocketStream) -> None:
    received = b""
    try:
        while True:
            while b"\r\n\r\n" not in received:
                more = await stream.receive_some()
                if not more:
                    return
                received += more
            head, _, received = received.partition(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            size = int(found[1]) if found else 0
            while len(received) < size:
                received += await stream.receive_some()
            body, received = received[:size], received[size:]
            method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
            status, answer = registry.answer(method, path, body)
            await registry.lets_answer.wait()
            age = "" if registry.age is None else f"X-Staleness-Seconds: {registry.age}\r\n"
            start = f"HTTP/1.1 {status} X\r\n{age}Content-Length: {len(answer)}\r\n\r\n".encode()
            await stream.send_all(start + answer)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return


@asynccontextmanager
async def scripted_registry() -> AsyncIterator[ScriptedRegistry]:
    """A registry without schemas, until the block ends."""
    registry = ScriptedRegistry()
    registry.lets_answer.set()
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, partial(_serve, registry), 0, host="127.0.0.1"))
        registry.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        yield registry
        nursery.cancel_scope.cancel()
