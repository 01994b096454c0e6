import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import java.util.concurrent.CountDownLatch;

/** produce|consume PORT QUEUE COUNT BYTES: persistent messages in a durable queue, acknowledged automatically. */
final class RabbitMqRun {
    private static final int PREFETCH_MESSAGES = 1000;

    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(Integer.parseInt(arguments[1]));
        Meter meter = new Meter(Long.parseLong(arguments[3]), Integer.parseInt(arguments[4]));
        try (Connection connection = factory.newConnection()) {
            Channel channel = connection.createChannel();
            channel.queueDeclare(arguments[2], true, false, false, null);
            if (arguments[0].equals("produce")) {
                produce(channel, arguments[2], meter);
            } else {
                consume(channel, arguments[2], meter);
            }
        }
        meter.finish();
    }

    /** The answer to the close comes after everything that was published before. */
    private static void produce(Channel channel, String queue, Meter meter) throws Exception {
        meter.start();
        boolean isLast = false;
        while (!isLast) {
            channel.basicPublish("", queue, MessageProperties.MINIMAL_PERSISTENT_BASIC, meter.message());
            isLast = meter.count();
        }
        channel.close();
    }

    private static void consume(Channel channel, String queue, Meter meter) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        channel.basicQos(PREFETCH_MESSAGES);
        channel.basicConsume(queue, true, new DefaultConsumer(channel) {
            @Override
            public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
                if (meter.count()) {
                    done.countDown();
                }
            }
        });
        done.await();
    }
}
