"""Python clients write and read by protocols and mechanisms, all at a time: what each way gave back."""

import asyncio
import ssl
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from exchange import DEADLINE_S, Deadline, main


def confluent(bootstrap: Any, asked: Any) -> Any:
    from confluent_kafka import Consumer, KafkaException, Producer

    settings = {"bootstrap.servers": bootstrap, "security.protocol": asked["protocol"], "log_level": 0}
    if "ca" in asked:
        settings["ssl.ca.location"] = asked["ca"]
    if "certificate" in asked:
        settings |= {"ssl.certificate.location": asked["certificate"], "ssl.key.location": asked["certificate"]}
    if asked.get("mechanism") == "OAUTHBEARER":
        settings |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (asked["token"], asked["token_ends"])}
    elif "mechanism" in asked:
        settings |= {"sasl.mechanism": asked["mechanism"]}
        settings |= {"sasl.username": asked["user"], "sasl.password": asked["password"]}
    failed: list[Any] = []
    producer = Producer(settings)
    for number in range(3):
        producer.produce(
            asked["topic"], b"%d" % number, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    left = producer.flush(30)
    if failed or left:
        raise KafkaException(failed[0] if failed else left)
    consumer = Consumer({**settings, "group.id": f"{asked['topic']}-group", "auto.offset.reset": "earliest"})
    consumer.subscribe([asked["topic"]])
    found = [(message.value() or b"").decode() for message in consumer.consume(3, timeout=30)]
    consumer.close()
    return found


def _context(asked: Any) -> Any:
    if "SSL" not in asked["protocol"]:
        return None
    context = ssl.create_default_context(cafile=asked["ca"])
    if "certificate" in asked:
        context.load_cert_chain(asked["certificate"])
    return context


def _python_settings(bootstrap: Any, asked: Any, provider: Any) -> Any:
    settings = {
        "bootstrap_servers": bootstrap,
        "security_protocol": asked["protocol"],
        "ssl_context": _context(asked),
    }
    if asked.get("mechanism") == "OAUTHBEARER":
        settings |= {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider}
    elif "mechanism" in asked:
        settings |= {"sasl_mechanism": asked["mechanism"]}
        settings |= {"sasl_plain_username": asked["user"], "sasl_plain_password": asked["password"]}
    return settings


def kafka_python(bootstrap: Any, asked: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaConsumer, KafkaProducer
        from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> Any:
            return asked["token"]

    settings = _python_settings(bootstrap, asked, Provider())
    producer = KafkaProducer(**settings)
    sent = [producer.send(asked["topic"], b"%d" % number) for number in range(3)]
    producer.flush(DEADLINE_S)
    for future in sent:
        future.get(DEADLINE_S)
    producer.close()
    consumer = KafkaConsumer(
        asked["topic"], **settings, group_id=f"{asked['topic']}-group", auto_offset_reset="earliest"
    )
    found: list[str] = []
    deadline = Deadline("reading", 60)
    while len(found) < 3:
        deadline.check()
        for records in consumer.poll(1000).values():
            found += [record.value.decode() for record in records]
    consumer.close()
    return found


async def _aiokafka(bootstrap: Any, asked: Any) -> Any:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> Any:
            return asked["token"]

    settings = _python_settings(bootstrap, asked, Provider())
    async with AIOKafkaProducer(**settings) as producer:
        for number in range(3):
            await producer.send_and_wait(asked["topic"], b"%d" % number)
    group = {"group_id": f"{asked['topic']}-group", "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer(asked["topic"], **settings, **group) as consumer:
        found: list[str] = []
        while len(found) < 3:
            record = await asyncio.wait_for(consumer.getone(), 60)
            found.append(record.value.decode())
    return found


def by_all_ways(client: Any) -> Any:
    """The command that goes all ways, each in a thread."""

    def go(_: Any, asked: Any) -> Any:
        with ThreadPoolExecutor(len(asked)) as threads:
            return list(threads.map(lambda way: client(way["bootstrap"], way), asked))

    return go


if __name__ == "__main__":
    main(
        {
            "confluent-kafka": by_all_ways(confluent),
            "kafka-python": by_all_ways(kafka_python),
            "aiokafka": by_all_ways(lambda bootstrap, asked: asyncio.run(_aiokafka(bootstrap, asked))),
        }
    )
