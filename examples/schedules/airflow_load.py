"""An Airflow DAG that loads all topics every ten minutes. The workers need this program and Java.

A run that another one overtook (exit code 3) is skipped, a failed one is tried again.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    dag_id="pipeline_load",
    schedule=timedelta(minutes=10),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
):
    BashOperator(
        task_id="load_topics",
        bash_command="exec pipeline load run --config /etc/pipeline/load.toml --json",
        skip_on_exit_code=3,
        retries=3,
        retry_delay=timedelta(minutes=1),
    )
