import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;

/** A member of a group by ZooKeeper, of Kafka 0.8: takes part until its standard input ends, then leaves. */
public class OldConsumer {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("zookeeper.connect", args[0]);
        settings.put("zookeeper.session.timeout.ms", "4000");
        settings.put("group.id", args[1]);
        settings.put("consumer.id", args[2]);
        settings.put("rebalance.backoff.ms", "500");
        settings.put("rebalance.max.retries", "60");
        settings.put("auto.offset.reset", "smallest");
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(settings));
        int streams = Integer.parseInt(args[5]);
        if (args[3].equals("topic")) {
            Map topics = new HashMap();
            topics.put(args[4], Integer.valueOf(streams));
            connector.createMessageStreams(topics);
        } else {
            connector.createMessageStreamsByFilter(new Whitelist(args[4]), streams);
        }
        while (System.in.read() != -1) {
            continue;
        }
        connector.shutdown();
        System.exit(0);
    }
}
