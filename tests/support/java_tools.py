"""Java tools of Apache Kafka, run as their users start them."""

from tests.support.kafka import run_kafka_class

TOOLS = "org.apache.kafka.tools"


def run(tool: str, bootstrap: str, *arguments: str) -> str:
    return run_kafka_class(tool, "--bootstrap-server", bootstrap, *arguments)


def create(bootstrap: str, topic: str, *arguments: str) -> None:
    assert f"Created topic {topic}." in run(
        f"{TOOLS}.TopicCommand", bootstrap, "--create", "--topic", topic, *arguments
    )
