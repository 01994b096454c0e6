import java.io.IOException;
import java.time.Duration;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A member of a group: reads and commits until its standard input ends, then leaves and says what it has read. */
public class GroupMember implements Runnable, ConsumerRebalanceListener {
    private static volatile boolean stops = false;
    private static final ArrayNode GIVEN = JsonNodeFactory.instance.arrayNode();

    public static void main(String[] args) throws Exception {
        JsonNode asked = new ObjectMapper().readTree(args[1]);
        Map settings = new HashMap();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", asked.get("group").textValue());
        if (!asked.get("instance").isNull()) {
            settings.put("group.instance.id", asked.get("instance").textValue());
        }
        settings.put("partition.assignment.strategy", asked.get("assignor").textValue());
        settings.put("session.timeout.ms", String.valueOf(asked.get("session_ms").intValue()));
        settings.put("heartbeat.interval.ms", "500");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        GroupMember self = new GroupMember();
        Thread watcher = new Thread(self);
        watcher.setDaemon(true);
        watcher.start();
        ArrayNode values = JsonNodeFactory.instance.arrayNode();
        KafkaConsumer consumer = new KafkaConsumer(settings);
        consumer.subscribe(Collections.singleton(asked.get("topic").textValue()), self);
        while (!stops) {
            Iterator records = consumer.poll(Duration.ofMillis(100L)).iterator();
            boolean any = false;
            while (records.hasNext()) {
                values.add((String) ((ConsumerRecord) records.next()).value());
                any = true;
            }
            if (any) {
                commit(consumer);
            }
        }
        consumer.close();
        ObjectNode found = JsonNodeFactory.instance.objectNode();
        found.set("values", values);
        found.set("given", GIVEN);
        found.set("error", JsonNodeFactory.instance.nullNode());
        System.out.println(new ObjectMapper().writeValueAsString(found));
        System.exit(0);
    }

    /** While the group rebalances, no commit is taken: the next poll takes part, and then it is. */
    private static void commit(KafkaConsumer consumer) {
        try {
            consumer.commitSync();
        } catch (RebalanceInProgressException error) {
            System.err.println(error);
        }
    }

    public void run() {
        try {
            while (System.in.read() != -1) {
                continue;
            }
        } catch (IOException error) {
            System.err.println(error);
        }
        stops = true;
    }

    public void onPartitionsAssigned(Collection partitions) {
        GIVEN.add(JsonNodeFactory.instance.arrayNode().add(System.currentTimeMillis() / 1000.0).add(partitions.size()));
    }

    public void onPartitionsRevoked(Collection partitions) {
    }

    public void onPartitionsLost(Collection partitions) {
    }
}
