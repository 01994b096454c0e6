"""The driver of a load as a process of its own, which a test kills: at a step of its commit, or whenever it likes.

    python load_driver.py '{"settings": {...}, "kill": "before" | "after" | null}'

Starts Spark, waits for a line on stdin, and loads. Prints `planned` when the run has begun to write, and
`committed <sequence>` or the kind of its error at the end. `stepped_driver` stops at named steps instead.
"""

import json
import os
import signal
import sys
import time
from typing import Any

from pipeline.errors import PipelineError
from pipeline.hadoop.files.doors import publish_by_rename
from pipeline.hadoop.load import job as load_module
from pipeline.hadoop.load.config import LoadConfig
from pipeline.hadoop.load.job import run_load
from pipeline.hadoop.load.spark_session import local_session


class KillingFileSystem:
    """Kills this process before or after the rename of the commit."""

    def __init__(self, inner: Any, kill: Any) -> None:
        self._inner = inner
        self._kill = kill

    def __getattr__(self, name: Any) -> Any:
        return getattr(self._inner, name)

    def create(self, path: Any) -> Any:
        if "/_runs/" in path:
            print("planned", flush=True)
        return self._inner.create(path)

    def publish_exclusive(self, path: Any, content: Any, *, temporary: Any) -> None:
        if not hasattr(self._inner, "rename_exclusive"):
            self._kill_around(lambda: self._inner.publish_exclusive(path, content, temporary=temporary))
            return
        publish_by_rename(self, path, content, temporary)

    def rename_exclusive(self, source: Any, target: Any) -> None:
        self._kill_around(lambda: self._inner.rename_exclusive(source, target))

    def _kill_around(self, publish: Any) -> None:
        if self._kill == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        publish()
        if self._kill == "after":
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    order = json.loads(sys.argv[1])
    real = load_module.open_filesystem  # type: ignore[attr-defined]

    def open_filesystem(url: Any, **options: Any) -> Any:
        files, path = real(url, **options)
        return KillingFileSystem(files, order["kill"]), path

    load_module.open_filesystem = open_filesystem  # type: ignore[attr-defined]
    spark = local_session(memory="512m", with_source=False, is_short=True)
    sys.stdin.readline()
    try:
        config = LoadConfig.from_settings(order["settings"])
        result = run_load(spark, config, clock=lambda: time.time_ns() // 1_000_000)
        print(f"committed {result.manifest.sequence}" if result.manifest else "nothing new", flush=True)
    except PipelineError as error:
        print(type(error).__name__, flush=True)
        raise
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
