import com.rabbitmq.client.*;
import java.util.*;
import java.util.concurrent.*;

/** Checks the features of RabbitMQ's Java client against a broker, and prints "ok". */
public class Amqp {
    static void want(boolean truth, String what) {
        if (!truth) throw new AssertionError(what);
    }

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(args[0]);
        factory.setAutomaticRecoveryEnabled(true);
        Connection connection = factory.newConnection("java-test");
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        BlockingQueue<Integer> returns = new LinkedBlockingQueue<>();
        channel.addReturnListener(returned -> returns.add(returned.getReplyCode()));
        String deadLetters = channel.queueDeclare().getQueue();
        String queue = channel.queueDeclare("", false, true, true, Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", deadLetters)).getQueue();
        channel.exchangeDeclare("java-headers", BuiltinExchangeType.HEADERS, false, true, null);
        channel.queueBind(queue, "java-headers", "", Map.of("x-match", "any", "kind", "a", "n", 5));
        AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder().headers(Map.of("kind", "a", "list", List.of(1, "b"))).deliveryMode(2)
            .contentType("text/plain").timestamp(new Date(1700000000000L)).build();
        for (int n = 0; n < 100; n++) channel.basicPublish("java-headers", "", true, properties, new byte[] {(byte) n});
        channel.waitForConfirmsOrDie(10000);
        want(returns.isEmpty(), "nothing is returned");
        channel.basicPublish("java-headers", "", true, null, new byte[0]);
        want(returns.poll(10, TimeUnit.SECONDS) == 312, "returned");

        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();
        channel.basicQos(20);
        channel.basicConsume(queue, false, "tag", (tag, delivery) -> deliveries.add(delivery), cancelled::add);
        for (int n = 0; n < 100; n++) {
            Delivery one = deliveries.poll(10, TimeUnit.SECONDS);
            want(one != null && one.getBody()[0] == (byte) n, "in order");
            if (n % 10 == 0) channel.basicReject(one.getEnvelope().getDeliveryTag(), false);
            else channel.basicAck(one.getEnvelope().getDeliveryTag(), false);
        }
        channel.waitForConfirms();
        GetResponse dead = null;
        for (int tries = 0; dead == null && tries < 100; tries++) {
            dead = channel.basicGet(deadLetters, true);
            if (dead == null) Thread.sleep(20);
        }
        List<?> deaths = (List<?>) dead.getProps().getHeaders().get("x-death");
        Map<?, ?> death = (Map<?, ?>) deaths.get(0);
        want(death.get("reason").toString().equals("rejected") && (Long) death.get("count") == 1L, "x-death: " + death);
        want(death.get("time") instanceof Date && ((List<?>) death.get("routing-keys")).size() == 1, "x-death: " + death);
        channel.queueDelete(queue);
        want("tag".equals(cancelled.poll(10, TimeUnit.SECONDS)), "cancelled");

        RpcServer server = new RpcServer(channel, deadLetters) {
            @Override
            public byte[] handleCall(byte[] body, AMQP.BasicProperties reply) {
                return ("re " + new String(body)).getBytes();
            }
        };
        channel.queuePurge(deadLetters);
        Thread thread = new Thread(() -> { try { server.mainloop(); } catch (Exception end) { /* the connection is closed */ } });
        thread.setDaemon(true);
        thread.start();
        RpcClient client = new RpcClient(new RpcClientParams().channel(connection.createChannel()).exchange("").routingKey(deadLetters)
            .replyTo("amq.rabbitmq.reply-to"));
        want(new String(client.primitiveCall("x".getBytes())).equals("re x"), "answered");

        try {
            connection.createChannel().queueDeclarePassive("not-there");
            want(false, "404");
        } catch (java.io.IOException refused) {
            ShutdownSignalException cause = (ShutdownSignalException) refused.getCause();
            want(((AMQP.Channel.Close) cause.getReason()).getReplyCode() == 404, "404: " + cause);
        }
        connection.close();
        System.out.println("ok");
    }
}
