#!/bin/sh
# Spark 4.0.0 in an environment of its own below .cache: the newest version whose Kafka source is complete in the
# public repositories.
set -eu
cd "$(dirname "$0")/../.."
[ -f .cache/spark-4.0/.installed ] && exit
echo "Fetching PySpark 4.0.0" >&2
rm -rf .cache/spark-4.0
"${PYTHON:-python3}" -m venv .cache/spark-4.0
.cache/spark-4.0/bin/python -m pip install --quiet --disable-pip-version-check "pyspark==4.0.0"
touch .cache/spark-4.0/.installed
