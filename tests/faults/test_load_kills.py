"""The driver of a load killed at seeded moments of its run: what is committed stays exact, and all of it arrives."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.hadoop.load import LoadConfig, local_session, run_load
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic

DRIVER = Path(__file__).parents[1] / "support" / "load_driver.py"
KILLS = 10
SEED = 117


@pytest.mark.timeout(600)
def test_a_load_killed_at_any_moment_and_run_again(tmp_path):
    moments = random.Random(SEED)
    with LocalCluster(tmp_path / "local") as local:
        topic = LoadedTopic(local.bootstrap, (tmp_path / "root").as_uri())
        outcomes = []
        for _ in range(KILLS):
            topic.produce(700)
            order = json.dumps({"settings": topic.settings(), "kill": None})
            with subprocess.Popen(
                [sys.executable, str(DRIVER), order], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as driver:
                assert driver.stdout.readline() == b"planned\n"
                try:
                    driver.wait(moments.uniform(0, 5))
                except subprocess.TimeoutExpired:
                    driver.kill()
                outcomes.append(driver.wait())
            topic.check_exact()
        assert -9 in outcomes
        spark = local_session()
        config = LoadConfig.from_settings(topic.settings())
        run_load(spark, config, clock=lambda: time.time_ns() // 1_000_000)
        spark.stop()
        assert topic.check_exact() == KILLS * 700
