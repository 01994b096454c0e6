"""A real S3 server for tests, in a process of its own: moto's server mode."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.processes import free_port

START_DEADLINE_S = 120.0
BUCKET = "lake"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def running_s3(log: Path) -> Iterator[str]:
    """Starts the server with an empty bucket, and yields its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | ENVIRONMENT)
        try:
            _make_bucket(url, server, log)
            yield url
        finally:
            server.kill()
            server.wait()


def _make_bucket(url: str, server: Any, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=30):
                return
        except OSError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no S3 server:\n{log.read_text()[-3000:]}") from error
            time.sleep(0.1)
