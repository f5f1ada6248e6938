import com.hivemq.client.mqtt.*;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.mqtt3.*;
import com.hivemq.client.mqtt.mqtt3.message.connect.Mqtt3ConnectBuilder;
import com.hivemq.client.mqtt.mqtt3.message.subscribe.suback.Mqtt3SubAckReturnCode;
import com.hivemq.client.mqtt.mqtt5.*;
import com.hivemq.client.mqtt.mqtt5.datatypes.*;
import com.hivemq.client.mqtt.mqtt5.message.connect.*;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5DisconnectReasonCode;
import com.hivemq.client.mqtt.mqtt5.message.publish.*;
import com.hivemq.client.mqtt.mqtt5.message.publish.puback.Mqtt5PubAckReasonCode;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.suback.Mqtt5SubAckReasonCode;
import java.util.*;
import java.util.concurrent.*;

/** Checks the features of HiveMQ's client against a broker, with MQTT 3.1.1 and MQTT 5, and prints "ok". */
public class Mqtt {
    static String host;
    static int port;

    record Message(String topic, String payload, int qos, boolean retained) {}

    static void want(boolean truth, String what) {
        if (!truth) throw new AssertionError(what);
    }

    static <T> T next(BlockingQueue<T> from, String what) throws Exception {
        T one = from.poll(10, TimeUnit.SECONDS);
        want(one != null, "nothing arrived within 10 s: " + what);
        return one;
    }

    /** The interface through which the scenarios use a client of either version. */
    interface Client {
        void subscribe(String filter, int qos);
        void publish(String topic, String payload, int qos, boolean retain);
        BlockingQueue<Message> received();
        /** End the connection so that the broker publishes the will. */
        void fail() throws Exception;
        void leave();
    }

    interface Connect {
        /** Return a connected client; set `resumed[0]` to true if the broker resumed its session. */
        Client connect(String name, boolean clean, Message will, boolean[] resumed) throws Exception;
    }

    static class Three implements Client {
        final BlockingQueue<Message> received = new LinkedBlockingQueue<>();
        final Mqtt3BlockingClient client;

        Three(String name, boolean clean, Message will, boolean[] resumed) {
            client = Mqtt3Client.builder().identifier(name).serverHost(host).serverPort(port).buildBlocking();
            client.toAsync().publishes(MqttGlobalPublishFilter.ALL, one -> received.add(new Message(one.getTopic().toString(),
                new String(one.getPayloadAsBytes()), one.getQos().getCode(), one.isRetain())));
            Mqtt3ConnectBuilder.Send<com.hivemq.client.mqtt.mqtt3.message.connect.connack.Mqtt3ConnAck> request = client.connectWith().cleanSession(clean);
            if (will != null) request = request.willPublish().topic(will.topic).qos(MqttQos.fromCode(will.qos)).payload(will.payload.getBytes()).applyWillPublish();
            resumed[0] = request.send().isSessionPresent();
        }

        public void subscribe(String filter, int qos) {
            want(client.subscribeWith().topicFilter(filter).qos(MqttQos.fromCode(qos)).send().getReturnCodes().get(0)
                == Mqtt3SubAckReturnCode.fromCode(qos), "the QoS is granted");
        }

        public void publish(String topic, String payload, int qos, boolean retain) {
            client.publishWith().topic(topic).qos(MqttQos.fromCode(qos)).payload(payload.getBytes()).retain(retain).send();
        }

        public BlockingQueue<Message> received() { return received; }

        /** The library cannot drop a connection. A second client with the same identifier makes the broker close the first one. */
        public void fail() {
            Mqtt3Client.builder().identifier(client.getConfig().getClientIdentifier().get().toString()).serverHost(host).serverPort(port)
                .buildBlocking().connect();
        }

        public void leave() { client.disconnect(); }
    }

    static class Five implements Client {
        final BlockingQueue<Message> received = new LinkedBlockingQueue<>();
        final BlockingQueue<Mqtt5Publish> whole = new LinkedBlockingQueue<>();
        final Mqtt5BlockingClient client;

        Five(String name, boolean clean, Message will, boolean[] resumed) {
            Mqtt5ClientBuilder builder = Mqtt5Client.builder().serverHost(host).serverPort(port);
            client = (name.isEmpty() ? builder : builder.identifier(name)).buildBlocking();
            client.toAsync().publishes(MqttGlobalPublishFilter.ALL, one -> {
                whole.add(one);
                received.add(new Message(one.getTopic().toString(), new String(one.getPayloadAsBytes()), one.getQos().getCode(), one.isRetain()));
            });
            var request = client.connectWith().cleanStart(clean).sessionExpiryInterval(clean ? 0 : 1000);
            if (will != null) request = request.willPublish().topic(will.topic).qos(MqttQos.fromCode(will.qos)).payload(will.payload.getBytes()).applyWillPublish();
            resumed[0] = request.send().isSessionPresent();
        }

        public void subscribe(String filter, int qos) {
            want(client.subscribeWith().topicFilter(filter).qos(MqttQos.fromCode(qos)).send().getReasonCodes().get(0)
                == Mqtt5SubAckReasonCode.fromCode(qos), "the QoS is granted");
        }

        public void publish(String topic, String payload, int qos, boolean retain) {
            client.publishWith().topic(topic).qos(MqttQos.fromCode(qos)).payload(payload.getBytes()).retain(retain).send();
        }

        public BlockingQueue<Message> received() { return received; }

        public void fail() {
            client.disconnectWith().reasonCode(Mqtt5DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE).send();
        }

        public void leave() { client.disconnect(); }
    }

    static void scenarios(Connect connect, String prefix) throws Exception {
        boolean[] resumed = new boolean[1];
        Client listener = connect.connect(prefix + "listener", true, null, resumed);
        Client writer = connect.connect(prefix + "writer", true, null, resumed);
        listener.subscribe(prefix + "/plain/#", 2);
        for (int qos = 0; qos <= 2; qos++) {
            for (int n = 0; n < 50; n++) writer.publish(prefix + "/plain/x", "" + n, qos, false);
            for (int n = 0; n < 50; n++) {
                want(next(listener.received(), "plain").equals(new Message(prefix + "/plain/x", "" + n, qos, false)), "in order, QoS " + qos);
            }
        }

        writer.publish(prefix + "/lamp", "on", 1, true);
        Client late = connect.connect(prefix + "late", true, null, resumed);
        late.subscribe(prefix + "/+", 1);
        want(next(late.received(), "retained").equals(new Message(prefix + "/lamp", "on", 1, true)), "retained");
        writer.publish(prefix + "/lamp", "", 1, true);
        want(next(late.received(), "cleared").equals(new Message(prefix + "/lamp", "", 1, false)), "cleared");
        late.leave();

        listener.subscribe(prefix + "/will", 1);
        Client mortal = connect.connect(prefix + "mortal", true, new Message(prefix + "/will", "gone", 1, false), resumed);
        mortal.fail();
        want(next(listener.received(), "will").equals(new Message(prefix + "/will", "gone", 1, false)), "the will");

        Client one = connect.connect(prefix + "one", true, null, resumed), two = connect.connect(prefix + "two", true, null, resumed);
        one.subscribe("$share/group/" + prefix + "/jobs", 1);
        two.subscribe("$share/group/" + prefix + "/jobs", 1);
        Set<String> jobs = new TreeSet<>();
        for (int n = 0; n < 20; n++) writer.publish(prefix + "/jobs", "" + n, 1, false);
        for (int n = 0; n < 10; n++) {
            jobs.add(next(one.received(), "a job").payload);
            jobs.add(next(two.received(), "a job").payload);
        }
        want(jobs.size() == 20, "each job reaches one subscriber: " + jobs);
        one.leave();
        two.leave();

        Client sleeper = connect.connect(prefix + "sleeper", false, null, resumed);
        want(!resumed[0], "a first session is new");
        sleeper.subscribe(prefix + "/kept", 2);
        sleeper.leave();
        writer.publish(prefix + "/kept", "first", 1, false);
        writer.publish(prefix + "/kept", "second", 2, false);
        sleeper = connect.connect(prefix + "sleeper", false, null, resumed);
        want(resumed[0], "the session is resumed");
        want(next(sleeper.received(), "kept").equals(new Message(prefix + "/kept", "first", 1, false)), "kept, QoS 1");
        want(next(sleeper.received(), "kept").equals(new Message(prefix + "/kept", "second", 2, false)), "kept, QoS 2");
        sleeper.leave();
        listener.leave();
        writer.leave();
    }

    /** Check that every property of an MQTT 5 publication reaches the subscriber. */
    static void properties(String prefix) throws Exception {
        Five one = new Five("", true, null, new boolean[1]);
        want(one.client.getConfig().getClientIdentifier().isPresent(), "a client without an identifier is given one");
        one.client.toAsync().subscribeWith().topicFilter(prefix + "/#").qos(MqttQos.EXACTLY_ONCE).retainAsPublished(true).send().get(10, TimeUnit.SECONDS);
        Mqtt5UserProperties user = Mqtt5UserProperties.builder().add("a", "1").add("b", "2").add("a", "3").build();
        Mqtt5PublishResult taken = one.client.publishWith().topic(prefix + "/ask").qos(MqttQos.AT_LEAST_ONCE).payload("?".getBytes()).contentType("text/plain")
            .responseTopic(prefix + "/answer").correlationData(new byte[] {0, 1, 2}).payloadFormatIndicator(Mqtt5PayloadFormatIndicator.UTF_8)
            .messageExpiryInterval(30).userProperties(user).retain(true).send();
        want(taken.getError().isEmpty(), "taken");
        Mqtt5Publish got = next(one.whole, "its own publication");
        want(got.getUserProperties().equals(user), "user properties: " + got.getUserProperties());
        want(got.getContentType().get().toString().equals("text/plain") && got.getResponseTopic().get().toString().equals(prefix + "/answer"), "strings");
        want(got.getPayloadFormatIndicator().get() == Mqtt5PayloadFormatIndicator.UTF_8 && got.getMessageExpiryInterval().getAsLong() <= 30, "numbers");
        want(got.isRetain() && got.getCorrelationData().get().remaining() == 3, "retained as published, with its correlation data");
        one.publish(prefix + "/ask", "", 1, true);
        Mqtt5PublishResult.Mqtt5Qos1Result unmatched = (Mqtt5PublishResult.Mqtt5Qos1Result)
            one.client.publishWith().topic(prefix + "-unmatched").qos(MqttQos.AT_LEAST_ONCE).send();
        want(unmatched.getPubAck().getReasonCode() == Mqtt5PubAckReasonCode.NO_MATCHING_SUBSCRIBERS, "no matching subscribers: " + unmatched);
        one.leave();
    }

    public static void main(String[] args) throws Exception {
        host = args[0];
        port = Integer.parseInt(args[1]);
        scenarios(Three::new, args[2] + "v3");
        scenarios(Five::new, args[2] + "v5");
        properties(args[2] + "properties");
        System.out.println("ok");
        System.exit(0); // The library's threads do not end by themselves.
    }
}
