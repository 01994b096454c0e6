"""Planning of many topics: a topic that cannot be planned stops no other."""

from pathlib import Path
from typing import Any

import pytest
import trio

from pipeline.hadoop.commit.layout import topic_layout
from pipeline.hadoop.commit.manifest import ManifestError
from pipeline.hadoop.commit.publication import Head, commit
from pipeline.hadoop.files.local import LocalFileSystem
from pipeline.hadoop.load import many
from pipeline.hadoop.load.config import LoadsConfig
from pipeline.hadoop.load.job import LoadError, OpenedLoad, open_load
from tests.support.manifests import manifest_after

EMPTY = Head(manifest=None, sha256=None)


def opened(root: Path) -> dict[str, Any]:
    settings = {"bootstrap.servers": "127.0.0.1:1", "root": str(root), "value.format": "binary", "format": "avro"}
    config = LoadsConfig.from_settings(settings | {"topics.include": ".*"}, {})
    found: dict[str, Any] = {}
    trio.run(many._open_all, config, ["bad", "good"], lambda: 0, found)
    return found


@pytest.mark.parametrize(
    ("whole", "wrong"), [(b'"window_ms": 600000', b'"window_ms": "600000"'), (b'"offsets": {"0": 10}', b'"offsets": 7')]
)
def test_a_manifest_with_values_of_other_types_is_the_error_of_its_topic(
    tmp_path: Path, whole: bytes, wrong: bytes
) -> None:
    for topic in ("bad", "good"):
        layout = topic_layout(str(tmp_path), topic)
        commit(LocalFileSystem(), layout, manifest_after(EMPTY), EMPTY)
    path = Path(topic_layout(str(tmp_path), "bad").manifest(1))
    assert whole in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(whole, wrong))
    found = opened(tmp_path)
    assert isinstance(found["good"], OpenedLoad)
    assert isinstance(found["bad"], ManifestError)
    assert "is damaged" in str(found["bad"])


def test_an_error_that_nobody_foresaw_is_that_of_its_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = open_load

    def fail_for_bad(settings: Any, *given: Any, **more: Any) -> Any:
        if settings.topic == "bad":
            raise TypeError("'<' not supported")
        return real(settings, *given, **more)

    monkeypatch.setattr(many, "open_load", fail_for_bad)
    found = opened(tmp_path)
    assert isinstance(found["good"], OpenedLoad)
    assert isinstance(found["bad"], LoadError)
    assert "TypeError: '<' not supported" in str(found["bad"])
