"""A program: kafka-python writes 500 records to a topic and reads them back. Arguments: bootstrap, topic, codec.

A process of its own, since the library leaves sockets and warnings behind.
"""

import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

DEADLINE_S = 120


def main(bootstrap: str, topic: str, codec: str) -> None:
    values = [b"value %d " % number * 20 for number in range(500)]
    producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec)
    sent = [producer.send(topic, value, key=b"k", timestamp_ms=1000 + n) for n, value in enumerate(values)]
    producer.flush(DEADLINE_S)
    assert [future.get(1).offset for future in sent] == list(range(500))
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        group_id=None,
        consumer_timeout_ms=DEADLINE_S * 1000,
    )
    read = [next(consumer) for _ in values]
    assert [record.value for record in read] == values
    assert [record.timestamp for record in read] == list(range(1000, 1500))
    partition = TopicPartition(topic, 0)
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 500}
    assert consumer.offsets_for_times({partition: 1234})[partition].offset == 234
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
