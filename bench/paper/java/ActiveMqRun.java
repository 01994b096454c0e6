import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.Session;
import org.apache.activemq.ActiveMQConnectionFactory;

/** produce|consume PORT QUEUE COUNT BYTES: persistent messages, sent without waiting, acknowledged automatically. */
final class ActiveMqRun {
    private static final String OPTIONS = "?jms.useAsyncSend=true&jms.prefetchPolicy.all=1000";

    public static void main(String[] arguments) throws Exception {
        Meter meter = new Meter(Long.parseLong(arguments[3]), Integer.parseInt(arguments[4]));
        var factory = new ActiveMQConnectionFactory("tcp://127.0.0.1:" + arguments[1] + OPTIONS);
        Connection connection = factory.createConnection();
        connection.start();
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        Queue queue = session.createQueue(arguments[2]);
        if (arguments[0].equals("produce")) {
            produce(session, queue, meter);
            connection.close();
            meter.finish();
        } else {
            consume(session, queue, meter);
            meter.finish();
            connection.close();
        }
    }

    /** The answer to the close of the connection comes after everything that was sent before. */
    private static void produce(Session session, Queue queue, Meter meter) throws Exception {
        MessageProducer producer = session.createProducer(queue);
        producer.setDeliveryMode(DeliveryMode.PERSISTENT);
        meter.start();
        boolean isLast = false;
        while (!isLast) {
            BytesMessage message = session.createBytesMessage();
            message.writeBytes(meter.message());
            producer.send(message);
            isLast = meter.count();
        }
    }

    private static void consume(Session session, Queue queue, Meter meter) throws Exception {
        MessageConsumer consumer = session.createConsumer(queue);
        boolean isLast = false;
        while (!isLast) {
            BytesMessage message = (BytesMessage) consumer.receive();
            message.readBytes(new byte[(int) message.getBodyLength()]);
            isLast = meter.count();
        }
    }
}
