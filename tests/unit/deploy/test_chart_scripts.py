"""Scripts of the Helm chart that run in pods: settings of a pod, the wait before a stop, readiness of ZooKeeper."""

import http.server
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.cli.main import app
from tests.support.secured_http import http_files

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "deploy" / "kubernetes" / "pipeline" / "files"
TIMEOUT_S = 60


def run(
    script: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    alone = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(command, env=alone, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def pod(account: Path, port: int) -> dict[str, str]:
    """Return the environment of a broker's pod, with Kubernetes at a port of this machine."""
    names = {"POD_NAME": "dc-broker-11", "POD_IP": "10.0.0.9", "NODE_NAME": "node-7", "RACK_FROM": "node"}
    server = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    return {**names, **server, "SERVICE_ACCOUNT": str(account)}


@contextmanager
def answering(answer: Any, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve HTTP until the block ends; `answer` gives status and document for a path and headers. Gives the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = answer(self.path, self.headers)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("labels", "rack"), [({"topology.kubernetes.io/zone": "b"}, "b"), ({}, "node-7")])
def test_the_rack_is_the_zone_that_kubernetes_knows_of_the_node(labels: Any, rack: Any, tmp_path: Path) -> None:
    files = http_files(tmp_path)
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_bytes(files.ca.read_bytes())
    (tmp_path / "source").write_text('"broker.id" = "@ORDINAL@"\n"broker.rack" = "@RACK@"\nmail = "a@EXAMPLE@b"\n')
    asked = []

    def answer(path: str, headers: Any) -> tuple[int, Any]:
        asked.append((path, headers["Authorization"]))
        return 200, {"metadata": {"labels": labels}}

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.keystore)
    with answering(answer, context) as port:
        done = run(
            *("settings.py", str(tmp_path / "source"), str(tmp_path / "target")),
            environment=pod(tmp_path, port),
        )
    assert done.returncode == 0, done.stderr
    assert asked == [("/api/v1/nodes/node-7", "Bearer secret")]
    text = (tmp_path / "target").read_text()
    assert text == f'"broker.id" = "11"\n"broker.rack" = "{rack}"\nmail = "a@EXAMPLE@b"\n'


def test_without_an_answer_of_kubernetes_there_are_no_settings(tmp_path: Path) -> None:
    """A broker without its rack would have replicas put where they should not be: the pod is tried again instead."""
    (tmp_path / "source").write_text('"broker.rack" = "@RACK@"\n')
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "ca.crt").write_bytes(http_files(tmp_path).ca.read_bytes())
    done = run(
        *("settings.py", str(tmp_path / "source"), str(tmp_path / "target")),
        environment=pod(tmp_path, 1),
    )
    assert done.returncode != 0
    assert not (tmp_path / "target").exists()


def test_the_chart_gives_services_the_rights_that_one_description_gives(tmp_path: Path) -> None:
    example = (ROOT / "deploy" / "company.example.toml").read_text()
    (tmp_path / "company.toml").write_text(re.sub("^(tls|sasl) = false", r"\1 = true", example, flags=re.MULTILINE))
    done = CliRunner().invoke(app, ["deploy", "render", str(tmp_path / "company.toml"), str(tmp_path / "rendered")])
    assert done.exit_code == 0, done.output

    def rights(path: Path) -> set[str]:
        return {line for line in path.read_text().splitlines() if line.startswith("pipeline acl add ")}

    assert rights(SCRIPTS / "acls.sh") == rights(tmp_path / "rendered" / "acls" / "hub.sh") != set()


def test_a_stop_waits_until_the_broker_may_stop() -> None:
    answers = [503, 503, 200]
    with answering(lambda *_: (answers.pop(0), {})) as port:
        done = run("wait.py", f"http://127.0.0.1:{port}/readyz?check=stop", "60")
    assert (done.returncode, answers, done.stderr) == (0, [], "")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_stop_waits_no_longer_than_it_may(is_there: Any) -> None:
    begun = time.monotonic()
    with answering(lambda *_: (503, {"reason": "partitions in need"})) as port:
        done = run("wait.py", f"http://127.0.0.1:{port if is_there else 1}/readyz?check=stop", "1")
    assert done.returncode == 0
    assert time.monotonic() - begun < TIMEOUT_S / 2
    assert ("partitions in need" if is_there else "refused") in done.stderr


@pytest.mark.parametrize(
    ("answer", "is_ready"),
    [
        (b"Zookeeper version: 3.9.5\nLatency min/avg/max: 0/0.0/0\nMode: follower\nNode count: 5\n", True),
        (b"Zookeeper version: 3.9.5\nMode: standalone\n", True),
        (b"This ZooKeeper instance is not currently serving requests\n", False),
        (b"", False),
    ],
)
def test_a_zookeeper_server_is_ready_in_a_quorum(answer: Any, is_ready: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(4) == b"srvr"
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        done = run("zookeeper_ready.py", str(server.getsockname()[1]))
        thread.join()
    assert (done.returncode == 0) is is_ready
