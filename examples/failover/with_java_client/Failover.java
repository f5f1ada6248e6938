// RabbitMQ's Java client: a publisher and a consumer that continue at the other node after a failover.
//
//     java -cp CLASS_PATH Failover.java HOST:PORT HOST:PORT

import com.rabbitmq.client.Address;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.concurrent.TimeoutException;

public class Failover {
    public static void main(String[] arguments) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setRequestedHeartbeat(10);
        // The library connects again by itself, to each address in turn, and consumes again.
        factory.setNetworkRecoveryInterval(200);
        Address[] nodes = {Address.parseAddress(arguments[0]), Address.parseAddress(arguments[1])};
        Connection connection = factory.newConnection(nodes);

        Channel consumer = connection.createChannel();
        consumer.queueDeclare("work", true, false, false, null);
        consumer.basicQos(100);
        consumer.basicConsume("work", false, (tag, delivery) -> {
            System.out.println("received " + new String(delivery.getBody()));
            consumer.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
        }, tag -> {});

        Channel publisher = connection.createChannel();
        publisher.confirmSelect();
        for (int number = 0; ; ) {
            try {
                byte[] body = String.valueOf(number).getBytes();
                publisher.basicPublish("", "work", MessageProperties.PERSISTENT_BASIC, body);
                publisher.waitForConfirmsOrDie(30_000);
                System.out.println("confirmed " + number++);
            } catch (ShutdownSignalException | IOException | TimeoutException lost) {
                Thread.sleep(200); // Publish the number again when the library has connected again.
            }
        }
    }
}
