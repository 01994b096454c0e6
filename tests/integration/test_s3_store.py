"""S3: the promises that the commit stands on, against a server in a process of its own and a proxy that misbehaves."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.errors import StorageError
from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.manifest_store import ManifestStore
from pipeline.hadoop.commit.publication import CommitConflictError, CommitOutcomeUnknownError, commit, read_head
from pipeline.hadoop.commit.runs import clean_up_own_run
from pipeline.hadoop.files.doors import PathExistsError, PathNotFoundError
from pipeline.hadoop.files.filesystem import open_filesystem
from tests.support.http_proxy import Fault, FaultyProxy, faulty_proxy
from tests.support.manifests import manifest_after
from tests.support.s3_server import BUCKET, ENVIRONMENT, running_s3

pytestmark = pytest.mark.long

MANIFEST = "/_commits/00000000000000000001.json"
PART = 5 << 20


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_s3(tmp_path_factory.mktemp("s3") / "server.log") as url:
        yield url


@pytest.fixture
def proxy(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3) as running:
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        yield running


@pytest.fixture
def opened(proxy: FaultyProxy, request: Any) -> Callable[..., Any]:
    root = f"s3://{BUCKET}/{request.node.name.replace('[', '-').rstrip(']')}"
    return lambda **options: open_filesystem(root, **({"timeout_s": 30} | options))


def write(files: Any, path: str, content: bytes) -> None:
    with files.create(path) as sink:
        sink.write(content)


def test_s3_keeps_what_the_commit_stands_on(opened: Any) -> None:
    files, path = opened()
    a, b = f"{path}/d/a", f"{path}/d/e/b"
    large = bytes(range(256)) * (PART * 2 // 256 + 7)
    write(files, a, b"123")
    write(files, b, large)
    for name in (a, b):
        with pytest.raises(PathExistsError):
            write(files, name, large if name == b else b"")
    assert files.read(a) == b"123"
    assert files.read(b) == large
    assert (files.read(b, PART - 1, 3), files.read(a, 1), files.read(a, 3), files.read(a, 9, 1)) == (
        large[PART - 1 : PART + 2],
        b"23",
        b"",
        b"",
    )
    assert (files.size(a), files.size(b)) == (3, len(large))
    write(files, f"{path}/empty", b"")
    assert files.read(f"{path}/empty") == b""
    assert [info.path for info in files.list_files(path)] == [f"{path}/empty"]
    found = [(info.path, info.size_bytes) for info in files.list_files(f"{path}/d", recursive=True)]
    assert found == [(a, 3), (b, len(large))]
    assert files.list_directories(path) == [f"{path}/d"]
    assert files.list_files(f"{path}/none") == []
    files.publish_exclusive(f"{path}/p", b"1", temporary=f"{path}/.p")
    with pytest.raises(PathExistsError):
        files.publish_exclusive(f"{path}/p", b"2", temporary=f"{path}/.q")
    assert files.read(f"{path}/p") == b"1"
    assert [info.path for info in files.list_files(path)] == [f"{path}/empty", f"{path}/p"]
    assert files.delete(a)
    assert not files.delete(a)
    for operation in (files.read, files.size):
        with pytest.raises(PathNotFoundError):
            operation(a)
    assert files.list_unfinished(path) == []


def test_an_upload_that_failed_or_was_left_is_aborted(opened: Any) -> None:
    files, path = opened()
    with pytest.raises(KeyError), files.create(f"{path}/hourly/failed") as sink:
        sink.write(bytes(PART + 1))
        raise KeyError
    assert files.list_unfinished(path) == []
    layout = topic_layout(path, "t")
    left = layout.absolute("hourly/2026/01/01/00/0-0-dead-0-1-0.avro")
    files.create(left).write(bytes(PART + 1))
    assert [info.path for info in files.list_unfinished(path)] == [left]
    assert clean_up_own_run(files, layout, "dead", ManifestStore(files, layout)) == 1
    assert files.list_unfinished(path) == []


@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_file_whose_answer_was_lost_is_whole(opened: Any, proxy: FaultyProxy, method: str, status: int) -> None:
    files, path = opened()
    content = bytes(PART + 5 if method == "POST" else 5)
    sink = files.create(f"{path}/a")
    sink.write(content)
    proxy.faults.append(Fault(method, "/a", status=status))
    sink.close()
    assert proxy.faults[0].times == 0
    assert files.read(f"{path}/a") == content


@pytest.mark.parametrize("status", [500, 503, None])
@pytest.mark.parametrize("times", [1, 3])
def test_a_commit_whose_answer_was_lost_is_a_commit(
    opened: Any, proxy: FaultyProxy, status: int | None, times: int
) -> None:
    files, path = opened(timeout_s=3)
    layout = topic_layout(path, "t")
    head = read_head(files, layout)
    proxy.faults.append(Fault("PUT", MANIFEST, times=times, status=status))
    commit(files, layout, manifest_after(head, run_id="r1"), head)
    assert proxy.faults[0].times < times
    assert read_head(files, layout).sha256 is not None


@pytest.mark.parametrize("status", [500, None])
def test_a_commit_that_may_come_late_is_an_unknown_outcome(opened: Any, proxy: FaultyProxy, status: int | None) -> None:
    files, path = opened(timeout_s=3)
    layout = topic_layout(path, "t")
    head = read_head(files, layout)
    proxy.faults.append(Fault("PUT", MANIFEST, times=9, is_forwarded=False, status=status))
    with pytest.raises(CommitOutcomeUnknownError, match="Run again"):
        commit(files, layout, manifest_after(head, run_id="r1"), head)
    proxy.faults.clear()
    commit(files, layout, manifest_after(head, run_id="r2"), head)
    with pytest.raises(CommitConflictError, match="r2"):  # as the late request
        commit(files, layout, manifest_after(head, run_id="r1"), head)


def test_a_refused_commit_is_certainly_none(opened: Any, proxy: FaultyProxy) -> None:
    files, path = opened()
    layout = topic_layout(path, "t")
    head = read_head(files, layout)
    proxy.faults.append(Fault("PUT", MANIFEST, is_forwarded=False, status=403))
    with pytest.raises(StorageError, match="403"):
        commit(files, layout, manifest_after(head, run_id="r1"), head)
    assert read_head(files, layout).manifest is None


def test_one_of_many_loaders_commits(opened: Any) -> None:
    files, path = opened()
    layout = topic_layout(path, "t")
    head = read_head(files, layout)
    barrier = threading.Barrier(4)
    outcomes: dict[str, str] = {}

    def load(run_id: str) -> None:
        mine, _ = opened()
        barrier.wait()
        try:
            commit(mine, layout, manifest_after(head, run_id=run_id), head)
            outcomes[run_id] = "won"
        except CommitConflictError as error:
            outcomes[run_id] = error.winner

    threads = [threading.Thread(target=load, args=(f"r{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manifest = read_head(files, layout).manifest
    assert manifest is not None
    assert outcomes.pop(manifest.run_id) == "won"
    assert list(outcomes.values()) == [manifest.run_id] * 3


def test_a_store_that_ignores_conditions_is_refused_before_the_first_commit(opened: Any, proxy: FaultyProxy) -> None:
    files, path = opened()
    layout = topic_layout(path, "t")
    head = read_head(files, layout)
    proxy.ignores_conditions = True
    with pytest.raises(StorageError, match="ignores If-None-Match"):
        commit(files, layout, manifest_after(head, run_id="r1"), head)
    assert files.list_files(path, recursive=True) == []


def test_a_silent_endpoint_is_an_error_in_time(opened: Any, proxy: FaultyProxy) -> None:
    files, path = opened(timeout_s=1)
    for method, operation in (("HEAD", files.size), ("GET", files.read)):
        proxy.faults.append(Fault(method, "/x", times=9, status=None))
        with pytest.raises(StorageError, match=r"(?i)time|not answered"):
            operation(f"{path}/x")


def test_a_bucket_that_is_missing_is_named(proxy: FaultyProxy) -> None:
    files, path = open_filesystem("s3://no-such-bucket/x", timeout_s=30)
    with pytest.raises(StorageError, match="bucket"):
        files.list_files(path)
