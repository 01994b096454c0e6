import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** produce|consume PORT TOPIC COUNT BYTES BATCH: Kafka's client, for Apache Kafka and for ours. */
final class KafkaRun {
    private static final int BATCH_HEADER_BYTES = 61;
    private static final int RECORD_HEADER_BYTES = 10;
    private static final int PREFETCH_BYTES = 200_000;
    private static final int PREFETCH_MESSAGES = 1000;
    private static final long END_DEADLINE_NS = 60_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[2];
        int messageBytes = Integer.parseInt(arguments[4]);
        Meter meter = new Meter(Long.parseLong(arguments[3]), messageBytes);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", "127.0.0.1:" + arguments[1]);
        if (arguments[0].equals("produce")) {
            produce(settings, topic, meter, messageBytes, Integer.parseInt(arguments[5]));
            waitForEnd(settings, topic, Long.parseLong(arguments[3]));
        } else {
            consume(settings, topic, meter);
        }
        meter.finish();
    }

    private static void produce(Properties settings, String topic, Meter meter, int messageBytes, int batch)
            throws Exception {
        settings.put("acks", "0");
        settings.put("enable.idempotence", "false");
        settings.put("linger.ms", batch == 1 ? "0" : "100");
        int bytes = BATCH_HEADER_BYTES + batch * (RECORD_HEADER_BYTES + messageBytes);
        settings.put("batch.size", batch == 1 ? 0 : bytes);
        Exception[] failure = new Exception[1];
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.partitionsFor(topic);
            meter.start();
            boolean isLast = false;
            while (!isLast) {
                producer.send(new ProducerRecord<>(topic, meter.message()), (metadata, error) -> {
                    if (error != null) {
                        failure[0] = error;
                    }
                });
                isLast = meter.count();
            }
            producer.flush();
        }
        if (failure[0] != null) {
            throw failure[0];
        }
    }

    /** Without acknowledgements the log alone says that all is there. */
    private static void waitForEnd(Properties settings, String topic, long count) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        long deadlineNs = System.nanoTime() + END_DEADLINE_NS;
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            long end = 0;
            while ((end = consumer.endOffsets(List.of(partition)).get(partition)) < count) {
                if (System.nanoTime() > deadlineNs) {
                    throw new IllegalStateException(end + " of " + count + " messages are in the log");
                }
                Thread.sleep(1);
            }
        }
    }

    private static void consume(Properties settings, String topic, Meter meter) {
        settings.put("max.partition.fetch.bytes", PREFETCH_BYTES);
        settings.put("max.poll.records", PREFETCH_MESSAGES);
        settings.put("enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            boolean isLast = false;
            while (!isLast) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    isLast = meter.count();
                }
            }
        }
    }
}
