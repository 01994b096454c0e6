"""Source, sink and tables with each PySpark that they support, in an environment of its own below .cache."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic
from tests.support.pyspark_versions import python_with
from tests.support.written_table import WrittenTable

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "read_with_pyspark.py"
DEADLINE_S = 500


@pytest.mark.long
@pytest.mark.parametrize("version", ["4.0.0", "4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_source_sink_and_tables_work_with_this_pyspark(version: str, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "cluster") as local:
        topic = LoadedTopic(local.bootstrap, tmp_path.as_uri())
        topic.produce(60)
        table = WrittenTable(tmp_path.as_uri())
        table.load(10)
        table.load(5, partition=1)
        python = python_with(version)
        copy = LoadedTopic(local.bootstrap, tmp_path.as_uri())
        command = [python, str(PROGRAM), local.bootstrap, topic.name, copy.name, str(tmp_path)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": python}
        environment.pop("SPARK_HOME", None)
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, cwd=tmp_path, env=environment
        )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert found["version"] == version
    assert found["batch"] == found["after"] == found["stream"] == list(range(60))
    assert found["copied"] == sorted([*range(60), *range(60)])
    assert found["files"] == list(range(60))
    assert found["table"] == found["loaded_table"] == sorted([*range(10), *range(5)])
    assert found["first_commit"] == list(range(4, 10))
    assert found["headers"] == 60
    assert 0 < len(found["filtered"]) < 60
