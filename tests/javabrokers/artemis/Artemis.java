import java.io.PrintStream;
import org.apache.activemq.artemis.core.config.Configuration;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;

/**
 * Runs Apache Artemis with MQTT on 127.0.0.1: Artemis PORT DIRECTORY RECEIVE_MAXIMUM PACKET_MAX MODE.
 *
 * <p>With the mode "file", the directory keeps sessions and messages; with the mode "in-memory", it does not.
 * The program prints "ready" when Artemis serves clients.
 */
public class Artemis {
    public static void main(String[] args) throws Exception {
        PrintStream output = System.out;
        System.setOut(System.err); // The log lines of the libraries.
        String limits = "receiveMaximum=%s;maximumPacketSize=%s".formatted(args[2], args[3]);
        Configuration configuration = new ConfigurationImpl()
            .setName("trellis-test")
            .setSecurityEnabled(false)
            .setPersistenceEnabled(args[4].equals("file"))
            .setJournalType(JournalType.NIO)
            .setJournalDirectory(args[1] + "/journal")
            .setBindingsDirectory(args[1] + "/bindings")
            .setPagingDirectory(args[1] + "/paging")
            .setLargeMessagesDirectory(args[1] + "/large")
            // A disk that is nearly full stops no publisher.
            .setMaxDiskUsage(-1)
            .addAcceptorConfiguration(
                "mqtt", "tcp://127.0.0.1:%s?protocols=MQTT;%s".formatted(args[0], limits));
        new EmbeddedActiveMQ().setConfiguration(configuration).start();
        output.println("ready");
        Thread.currentThread().join();
    }
}
