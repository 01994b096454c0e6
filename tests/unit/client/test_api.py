"""`pipeline.client` has what docs/client.md and docs/client/ name, and loads it when it is used."""

import subprocess
import sys

import pytest

import pipeline.client


@pytest.mark.parametrize("name", pipeline.client.__all__)
def test_every_name_of_the_api_can_be_imported(name: str) -> None:
    assert getattr(pipeline.client, name) is not None


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="open_clutser"):
        pipeline.client.open_clutser  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "unloaded"),
    [
        ("import pipeline.client", {"trio", "pydantic"}),
        ("from pipeline.client import open_cluster, open_consumer, open_producer", {"numba", "pyarrow", "fastavro"}),
    ],
)
def test_imports_load_only_the_modules_that_are_used(statement: str, unloaded: set[str]) -> None:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert unloaded.isdisjoint(loaded)
