"""What each setting means, in a sentence, for those who ask by DescribeConfigs (KIP-569). docs/broker.md says more."""

from collections.abc import Mapping
from types import MappingProxyType

TOPIC_DOCUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "segment.bytes": "Size in bytes at which a segment of the log is closed and the next one begun.",
        "segment.ms": "Time in ms that the records of one segment may span.",
        "flush.messages": "Records after which the log is flushed to the disk; 1 flushes before each acknowledgement.",
        "flush.ms": "Time in ms after which an appended record is flushed to the disk.",
        "max.message.bytes": "Largest record batch, in bytes, that is taken.",
        "index.interval.bytes": "Bytes of log between two entries of its index.",
        "message.timestamp.type": "Whose clock stamps a record: CreateTime the producer's, LogAppendTime the broker's.",
        "mirror.source": "Where this topic is mirrored from; read-only to others than the mirror.",
        "retention.ms": "Age in ms at which old segments are deleted; -1 keeps them for ever.",
        "retention.bytes": "Size in bytes of a partition above which old segments are deleted; -1 sets no bound.",
        "file.delete.delay.ms": "Time in ms after which files of deleted segments are unlinked.",
        "visibility": "When consumers see a record: appended, or flushed once it would survive a power failure.",
        "cleanup.policy": "What becomes of old records: delete by age and size, compact to the newest of each key.",
        "compression.type": "Codec of stored batches; producer keeps each as it came.",
        "min.insync.replicas": "In-sync replicas that must have a record before acks=all is acknowledged.",
    }
)

BROKER_DOCUMENTS: Mapping[str, str] = MappingProxyType(
    {
        "broker.id": "Number of the broker in its cluster.",
        "broker.rack": "Rack of the broker, told to clients.",
        "datacenter": "Name of the cluster in the audit; without it nothing is counted.",
        "log.dirs": "Directories in which the logs lie.",
        "zookeeper.connect": "Addresses of ZooKeeper, with a path at the end if wanted.",
        "zookeeper.session.timeout.ms": "Silence in ms after which ZooKeeper calls the broker gone.",
        "listeners": "Address to listen at.",
        "advertised.listeners": "Address that clients are told.",
        "http.listen": "Address of metrics and health.",
        "max.connections": "Connections that are held at the same time; more are closed at once.",
        "max.connections.per.ip": "Connections that are held from one address at the same time.",
        "max.connections.per.ip.overrides": "The same for single addresses, as address:count.",
        "queued.max.request.bytes": "Memory in bytes of all large requests that are under way; -1 or 0 sets no bound.",
        "connections.max.idle.ms": "Silence in ms after which a connection is closed.",
        "socket.request.max.bytes": "Largest request in bytes; a larger one ends its connection.",
        "fetch.max.bytes": "Bound in bytes of a Fetch response; its first batch is always whole.",
        "num.partitions": "Partitions of a topic that is created without a number of them.",
        "auto.create.topics.enable": "Whether topics are created when clients ask for them.",
        "message.max.bytes": "Largest record batch, in bytes, of topics that say nothing else.",
        "log.message.timestamp.type": "Whose clock stamps records, in topics that say nothing else.",
        "log.segment.bytes": "Size in bytes of a segment, of topics that say nothing else.",
        "log.roll.ms": "Time in ms that the records of one segment may span, of topics that say nothing else.",
        "log.retention.hours": "Age in hours at which old segments are deleted, of topics that say nothing else.",
        "log.retention.minutes": "The same in minutes, over log.retention.hours.",
        "log.retention.ms": "The same in ms, over log.retention.minutes and log.retention.hours; -1 keeps for ever.",
        "log.retention.bytes": "Size in bytes of a partition above which old segments are deleted; -1 sets no bound.",
        "log.retention.check.interval.ms": "Time in ms between two looks for what to delete.",
        "log.segment.delete.delay.ms": "Time in ms after which files of deleted segments are unlinked.",
        "quota.producer.default": "Bytes per second that a client id may produce, where no quota is set for it.",
        "quota.consumer.default": "Bytes per second that a client id may fetch, where no quota is set for it.",
        "quota.window.num": "Samples over which the rates of quotas are measured.",
        "quota.window.size.seconds": "Length in seconds of one such sample.",
        "log.index.interval.bytes": "Bytes of log between two index entries, of topics that say nothing else.",
        "log.flush.interval.messages": "Records after which a log is flushed, of topics that say nothing else.",
        "log.flush.interval.ms": "Time in ms after which a record is flushed, in topics that say nothing else.",
    }
)
