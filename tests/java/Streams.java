import com.rabbitmq.client.*;
import java.util.*;
import java.util.concurrent.*;

/**
 * Reads a stream with the Java client, prints a row for each message in the format of tests/interop/test_toolchains.py, publishes
 * a message, and prints "ok".
 */
public class Streams {
    static void want(boolean truth, String what) {
        if (!truth) throw new AssertionError(what);
    }

    static List<Delivery> read(Connection connection, String queue, Object offset, int count) throws Exception {
        Channel channel = connection.createChannel();
        channel.basicQos(3);
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, false, "reader", false, false, Map.of("x-stream-offset", offset),
            (tag, delivery) -> deliveries.add(delivery), tag -> { });
        List<Delivery> read = new ArrayList<>();
        while (read.size() < count) {
            Delivery one = deliveries.poll(10, TimeUnit.SECONDS);
            want(one != null && !one.getEnvelope().isRedeliver(), "row " + read.size() + " from " + offset);
            channel.basicAck(one.getEnvelope().getDeliveryTag(), false);
            read.add(one);
        }
        channel.close();
        return read;
    }

    static long offset(Delivery delivery) {
        return (Long) delivery.getProperties().getHeaders().get("x-stream-offset");
    }

    static String text(Object value) {
        return value == null ? "-" : value.toString();
    }

    static void printRow(Delivery delivery) {
        AMQP.BasicProperties properties = delivery.getProperties();
        Date timestamp = properties.getTimestamp();
        System.out.println(String.join(" ", "row", "" + offset(delivery), delivery.getEnvelope().getRoutingKey(),
            HexFormat.of().formatHex(delivery.getBody()), text(properties.getContentType()), text(properties.getCorrelationId()),
            timestamp == null ? "-" : "" + timestamp.getTime() / 1000, text(properties.getHeaders().get("n"))));
    }

    public static void main(String[] args) {
        try {
            work(args);
        } catch (Throwable failure) {  // Exit: threads of the connection would keep the program running.
            failure.printStackTrace(System.out);
            System.exit(1);
        }
    }

    static void work(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(args[0]);
        String queue = args[1], key = args[2];
        int count = Integer.parseInt(args[3]);
        Connection connection = factory.newConnection("java-streams");
        for (Delivery delivery : read(connection, queue, "first", count)) printRow(delivery);
        Map<Object, Long> begin = Map.of(2L, 2L, 2, 2L, (short) 2, 2L, "last", count - 1L, "1h", 0L, new Date(1000), 0L);
        for (Map.Entry<Object, Long> one : begin.entrySet())
            want(offset(read(connection, queue, one.getKey(), 1).get(0)) == one.getValue(), "from " + one.getKey());
        try {
            connection.createChannel().basicConsume(queue, false, (tag, delivery) -> { }, tag -> { });
            want(false, "a prefetch count is needed");
        } catch (java.io.IOException refused) {
            AMQP.Channel.Close close = (AMQP.Channel.Close) ((ShutdownSignalException) refused.getCause()).getReason();
            want(close.getReplyCode() == 406 && close.getReplyText().contains("prefetch count is not set"), "406: " + close);
        }
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        channel.basicQos(1);
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, false, Map.of("x-stream-offset", "next"), (tag, delivery) -> deliveries.add(delivery), tag -> { });
        byte[] body = new byte[256];
        for (int index = 0; index < 256; index++) body[index] = (byte) index;
        channel.basicPublish("amq.topic", key, new AMQP.BasicProperties.Builder().contentType("text/x").correlationId("c")
            .headers(Map.of("n", "7")).build(), body);
        channel.waitForConfirmsOrDie(10000);
        Delivery own = deliveries.poll(10, TimeUnit.SECONDS);
        want(own != null && offset(own) == count && Arrays.equals(own.getBody(), body), "the consumer gets the published message");
        connection.close();
        System.out.println("ok");
    }
}
