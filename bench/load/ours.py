"""The driver of our load: `python -m bench.load.ours JSON`, see drivers.py."""

import json
import sys
import time

from pipeline.hadoop.load import LoadConfig, run_load
from pipeline.hadoop.load.spark_session import local_session


def main() -> None:
    asked = json.loads(sys.argv[1])
    settings = {
        "bootstrap.servers": asked["bootstrap"],
        "topic": asked["topic"],
        "root": f"file://{asked['directory']}",
        "format": asked["format"],
    }
    settings |= {"schema.registry.url": asked["registry"]} if asked["schema"] else {"value.format": "binary"}
    spark = local_session(with_source=False, is_short=True)
    spark.sparkContext.parallelize([1, 2], 2).map(str).collect()
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    result = run_load(spark, LoadConfig.from_settings(settings), clock=lambda: time.time_ns() // 1_000_000)
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "records": result.records}), flush=True)
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    main()
