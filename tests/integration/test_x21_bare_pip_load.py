"""Loads and the data source run on what pip installs: Spark gets no jar and no package of ours or of anybody."""

from pathlib import Path
from typing import Any

import pyspark
import pytest

from pipeline.hadoop.load import LoadConfig, run_load
from pipeline.testing.local_cluster import LocalCluster
from tests.support.load_topic import LoadedTopic

pytestmark = pytest.mark.long


def test_a_load_and_a_read_need_no_jar_beside_those_of_pyspark(spark: Any, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "local") as local:
        topic = LoadedTopic(local.bootstrap, (tmp_path / "root").as_uri())
        topic.produce(100)
        config = LoadConfig.from_settings(topic.settings())
        assert run_load(spark, config, clock=lambda: 1_700_000_000_000).records == 100
        source = spark.read.format("pipeline").option("kafka.bootstrap.servers", local.bootstrap)
        assert source.option("subscribe", topic.name).load().count() == 100
        assert topic.check_exact() == 100
    settings = dict(spark.sparkContext.getConf().getAll())
    assert not {name for name in settings if name.startswith(("spark.jars", "spark.driver.extraClassPath"))}
    java = spark.sparkContext._jvm.java.lang.System
    carried = Path(pyspark.__file__).parent
    for entry in str(java.getProperty("java.class.path")).split(":"):
        assert Path(entry).is_relative_to(carried), entry
