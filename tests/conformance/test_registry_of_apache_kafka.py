"""Two registries over Apache Kafka: they elect a writer by the topic alone, forward, and take over."""

from pathlib import Path

import httpx
import pytest

from tests.support.registries import running_registries

DEADLINE_S = 120


@pytest.mark.long
def test_registries_elect_fence_and_forward_over_apache_kafka(apache_kafka: str, tmp_path: Path) -> None:
    settings = {"kafkastore.topic": "_elected", "kafkastore.topic.replication.factor": 1}
    with (
        running_registries(tmp_path, apache_kafka, 2, settings) as registries,
        httpx.Client(timeout=DEADLINE_S) as http,
    ):
        writer, follower = registries
        for number, registry in enumerate((writer, follower, writer), start=1):
            answer = http.post(f"{registry.url}/subjects/s{number}/versions", json={"schema": '{"type":"int"}'})
            assert (answer.status_code, answer.json()["id"]) == (200, 1), answer.text
        assert (writer.is_writer(), follower.is_writer()) == (True, False)
        writer.kill()
        answer = http.post(f"{follower.url}/subjects/t/versions", json={"schema": '{"type":"long"}'})
        assert (answer.status_code, answer.json()["id"]) == (200, 2), answer.text
        writer.start()
        writer.wait_applied()
        answer = http.post(f"{writer.url}/subjects/u/versions", json={"schema": '{"type":"string"}'})
        assert (answer.status_code, answer.json()["id"]) == (200, 3), answer.text
        assert follower.is_writer()
        assert follower.journal()["writer"]["epoch"] == 2
