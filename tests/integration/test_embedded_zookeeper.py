import stat
from pathlib import Path

import pytest

from pipeline.coordination import embedded
from pipeline.coordination.embedded import ZooKeeperProcess, find_java
from pipeline.coordination.zookeeper import open_zookeeper
from pipeline.errors import ConfigurationError
from pipeline.processes import ProcessEndedError


def put_java(directory: Path, script: str) -> None:
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)


def test_a_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"none in PATH.*install Java 17"):
        find_java()


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_old_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    put_java(tmp_path, f"echo 'openjdk version \"{version}\" 2020-01-01' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="install Java 17") as caught:
        find_java()
    assert version in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", ["17", "17.0.15", "25-ea"])
def test_new_java_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    put_java(tmp_path, f"echo 'openjdk version \"{version}\" 2020-01-01' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == tmp_path / "bin" / "java"


def test_java_home_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="from JAVA_HOME"):
        find_java()


async def test_data_and_port_outlive_the_process(tmp_path: Path) -> None:
    server = ZooKeeperProcess(tmp_path)
    assert server.pid is None
    async with server:
        port, first_pid = server.address.port, server.pid
        async with open_zookeeper(server.connect) as client:
            await client.create("/a", b"kept")
    assert server.pid is None
    assert await server.wait() is not None

    again = ZooKeeperProcess(tmp_path, port=port)
    async with again, open_zookeeper(again.connect) as client:
        assert again.pid not in (None, first_pid)
        assert await client.get("/a") == (b"kept", 0)
        rival = ZooKeeperProcess(tmp_path / "rival", port=port)
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} is taken"):
            await rival.start()
        assert rival.pid is None


@pytest.mark.long
@pytest.mark.parametrize("name", ["rival", "r\u00efv\u00e4l"])
async def test_a_server_that_took_the_port_meanwhile_is_not_taken_for_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    async with ZooKeeperProcess(tmp_path / name) as first:
        monkeypatch.setattr(embedded, "is_port_free", lambda *_: True)
        second = ZooKeeperProcess(tmp_path / "second", port=first.address.port)
        with pytest.raises(ProcessEndedError, match="Address already in use"):
            await second.start()
        assert second.pid is None
        assert first.pid is not None


@pytest.mark.long
async def test_a_server_that_cannot_start_tells_why(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("not a directory")
    server = ZooKeeperProcess(tmp_path)
    with pytest.raises(ProcessEndedError, match="version-2"):
        await server.start()
    assert server.pid is None
