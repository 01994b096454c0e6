"""Named steps of a load, at which its processes ask the test whether they may go on.

Driver and Python workers connect to the test (`StepServer`) at each step and say who they are. The test holds the
process that arrives first at the step that it waits for, does what it likes, and lets it go on. All others go on at
once. Nothing depends on time.
"""

import json
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

DRIVER_STEPS = ("plan", "planned", "manifest", "rename", "publish")
"""Before the mark, after it, before the manifest is written, before its rename (or PUT), and after it."""
WORKER_STEPS = ("write", "written")
"""A data file is open; it is closed."""
STEPS = ("plan", "planned", *WORKER_STEPS, "manifest", "rename", "publish")
END = "end"
PORT, NAME = "LOAD_STEPS_PORT", "LOAD_STEPS_NAME"


def at_step(step: str, outcome: str = "") -> None:
    """Tell the test that this process is at the step, and wait until it may go on."""
    with suppress(OSError):  # a process whose test has ended
        connection = socket.create_connection(("127.0.0.1", int(os.environ[PORT])))
        with connection, connection.makefile("rwb") as stream:
            hello = {"name": os.environ[NAME], "step": step, "pid": os.getpid(), "outcome": outcome}
            stream.write(json.dumps(hello).encode() + b"\n")
            stream.flush()
            stream.readline()


class SteppedFileSystem:
    """A store whose users stop at the steps."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str) -> Any:
        folder, name = path.rsplit("/", 2)[1:]
        is_mark = folder == "_runs" and not name.startswith(".")
        if is_mark:
            at_step("plan")
        sink = self._inner.create(path)
        if "/hourly/" in path:
            at_step("write")
            return SteppedSink(sink)
        return SteppedSink(sink, "planned") if is_mark else sink

    def publish_exclusive(self, path: str, content: bytes, *, temporary: str) -> None:
        """As `publish_by_rename`, through `rename_exclusive` of this object where the store has one."""
        from pipeline.hadoop.files.doors import publish_by_rename

        if "/_commits/" not in path:
            self._inner.publish_exclusive(path, content, temporary=temporary)
            return
        at_step("manifest")
        if hasattr(self._inner, "rename_exclusive"):
            publish_by_rename(self, path, content, temporary)
            return
        at_step("rename")
        self._inner.publish_exclusive(path, content, temporary=temporary)
        at_step("publish")

    def rename_exclusive(self, source: str, target: str) -> None:
        at_step("rename")
        self._inner.rename_exclusive(source, target)
        at_step("publish")


class SteppedSink:
    """A file of `SteppedFileSystem`."""

    def __init__(self, inner: Any, closed: str = "written") -> None:
        self._inner = inner
        self._closed = closed

    def write(self, data: Any) -> None:
        self._inner.write(data)

    def close(self) -> None:
        self._inner.close()
        at_step(self._closed)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._inner.__exit__(kind, error, trace)


def stop_at_steps() -> None:
    """Let loads of this process stop at the steps. Called before modules of loads are imported."""
    from pipeline.hadoop.files import filesystem

    real = filesystem.open_filesystem

    def open_filesystem(url: str, **options: Any) -> Any:
        files, path = real(url, **options)
        return SteppedFileSystem(files), path

    filesystem.open_filesystem = open_filesystem


@dataclass
class Arrival:
    """A process at a step (or at its end, with an outcome), held until `go_on`."""

    step: str
    pid: int
    outcome: str
    stream: Any

    def go_on(self) -> None:
        with suppress(OSError):  # it was killed
            self.stream.write(b"\n")
            self.stream.flush()
        self.stream.close()


@dataclass
class StepServer:
    """The test's end. `expect` names the step at which the next process of a driver is held."""

    port: int
    expected: dict[str, str] = field(default_factory=dict)
    arrivals: dict[str, "queue.Queue[Arrival]"] = field(default_factory=dict)
    workers: dict[str, dict[int, int]] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)

    def expect(self, name: str, step: str) -> None:
        self.expected[name] = step

    def kill_workers(self, name: str) -> int:
        """Kill all Python workers of a driver that have come to a step. Return how many were alive."""
        with self.lock:
            found = self.workers.pop(name, {})
        killed = 0
        for handle in found.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                killed += 1
            os.close(handle)
        return killed

    def _arrived(self, connection: Any) -> None:
        stream = connection.makefile("rwb")
        connection.close()
        hello = json.loads(stream.readline() or b"null")
        if hello is None:
            return
        name, step = hello.pop("name"), hello["step"]
        arrival = Arrival(**hello, stream=stream)
        with self.lock:
            if step in WORKER_STEPS:
                workers = self.workers.setdefault(name, {})
                if arrival.pid not in workers:
                    with suppress(ProcessLookupError):
                        workers[arrival.pid] = os.pidfd_open(arrival.pid)
            is_held = self.expected.get(name) == step or step == END
            if is_held and step != END:
                del self.expected[name]
        if is_held:
            self.arrivals[name].put(arrival)
        else:
            arrival.go_on()

    def serve(self, listener: Any) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._arrived, args=(connection,), daemon=True).start()


@contextmanager
def step_server() -> Iterator[StepServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = StepServer(listener.getsockname()[1])
        thread = threading.Thread(target=server.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
