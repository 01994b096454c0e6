import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/** Answers lines of JSON: assignments as Java's assignors make them, subscriptions as Java writes them. */
public class GroupOracle {
    private static final JsonNodeFactory JSON = JsonNodeFactory.instance;

    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = mapper.readTree(line);
            ObjectNode answer = asked.has("assignor") ? assigned(asked) : written(asked);
            System.out.write((mapper.writeValueAsString(answer) + "\n").getBytes(StandardCharsets.UTF_8));
            System.out.flush();
        }
    }

    private static List topics(JsonNode names) {
        List found = new ArrayList();
        for (Iterator each = names.elements(); each.hasNext();) {
            found.add(((JsonNode) each.next()).textValue());
        }
        return found;
    }

    private static ObjectNode assigned(JsonNode asked) {
        Node node = new Node(1, "localhost", 9092);
        Node[] nodes = new Node[] {node};
        List infos = new ArrayList();
        for (Iterator names = asked.get("partitions").fieldNames(); names.hasNext();) {
            String topic = (String) names.next();
            for (int number = 0; number < asked.get("partitions").get(topic).intValue(); number++) {
                infos.add(new PartitionInfo(topic, number, node, nodes, nodes));
            }
        }
        Cluster cluster = new Cluster("c", Collections.singleton(node), infos, new java.util.HashSet(), new java.util.HashSet());
        Map subscriptions = new HashMap();
        for (Iterator each = asked.get("members").elements(); each.hasNext();) {
            JsonNode member = (JsonNode) each.next();
            ConsumerPartitionAssignor.Subscription subscription =
                new ConsumerPartitionAssignor.Subscription(topics(member.get("topics")));
            if (!member.get("instance").isNull()) {
                subscription.setGroupInstanceId(Optional.of(member.get("instance").textValue()));
            }
            subscriptions.put(member.get("id").textValue(), subscription);
        }
        ConsumerPartitionAssignor assignor = asked.get("assignor").textValue().equals("range")
            ? (ConsumerPartitionAssignor) new RangeAssignor() : (ConsumerPartitionAssignor) new RoundRobinAssignor();
        Map assignment = assignor.assign(cluster, new ConsumerPartitionAssignor.GroupSubscription(subscriptions))
            .groupAssignment();
        ObjectNode answer = JSON.objectNode();
        for (Iterator ids = assignment.keySet().iterator(); ids.hasNext();) {
            String id = (String) ids.next();
            ArrayNode partitions = answer.putArray(id);
            List found = ((ConsumerPartitionAssignor.Assignment) assignment.get(id)).partitions();
            for (Iterator each = found.iterator(); each.hasNext();) {
                TopicPartition partition = (TopicPartition) each.next();
                partitions.add(JSON.arrayNode().add(partition.topic()).add(partition.partition()));
            }
        }
        return answer;
    }

    private static ObjectNode written(JsonNode asked) {
        List owned = new ArrayList();
        for (Iterator each = asked.get("owned").elements(); each.hasNext();) {
            JsonNode partition = (JsonNode) each.next();
            String topic = ((JsonNode) partition.get(0)).textValue();
            int number = ((JsonNode) partition.get(1)).intValue();
            owned.add(new TopicPartition(topic, number));
        }
        String named = asked.get("rack").textValue();
        Optional rack = Optional.ofNullable(named);
        byte[] data = null;
        String text = asked.get("user_data").textValue();
        if (text != null) {
            data = Base64.getDecoder().decode(text);
        }
        ByteBuffer userData = data == null ? null : ByteBuffer.wrap(data);
        ConsumerPartitionAssignor.Subscription subscription = new ConsumerPartitionAssignor.Subscription(
            topics(asked.get("topics")), userData, owned, asked.get("generation").intValue(), rack);
        short version = asked.get("version").shortValue();
        ByteBuffer bytes = ConsumerProtocol.serializeSubscription(subscription, version);
        ByteBuffer assignment = ConsumerProtocol.serializeAssignment(
            new ConsumerPartitionAssignor.Assignment(owned, data == null ? null : ByteBuffer.wrap(data)), version);
        ObjectNode answer = JSON.objectNode();
        answer.put("subscription", text(bytes));
        answer.put("assignment", text(assignment));
        return answer;
    }

    private static String text(ByteBuffer bytes) {
        byte[] found = new byte[bytes.remaining()];
        bytes.get(found);
        return Base64.getEncoder().encodeToString(found);
    }
}
