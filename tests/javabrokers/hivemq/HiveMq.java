import com.hivemq.embedded.EmbeddedHiveMQ;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Runs HiveMQ Community Edition on 127.0.0.1: HiveMq PORT DIRECTORY RECEIVE_MAXIMUM PACKET_MAX MODE.
 *
 * <p>With the mode "file", the directory keeps sessions and messages; with the mode "in-memory", it does not.
 * The program prints "ready" when HiveMQ serves clients.
 */
public class HiveMq {
    private static final String CONFIG = """
        <hivemq>
          <listeners>
            <tcp-listener><port>%s</port><bind-address>127.0.0.1</bind-address></tcp-listener>
          </listeners>
          <mqtt>
            <queued-messages><max-queue-size>1000000</max-queue-size></queued-messages>
            <receive-maximum><server-receive-maximum>%s</server-receive-maximum></receive-maximum>
            <packets><max-packet-size>%s</max-packet-size></packets>
          </mqtt>
          <persistence><mode>%s</mode></persistence>
          <anonymous-usage-statistics><enabled>false</enabled></anonymous-usage-statistics>
        </hivemq>
        """;

    public static void main(String[] args) throws Exception {
        PrintStream output = System.out;
        System.setOut(System.err); // The log lines of the libraries.
        Path directory = Path.of(args[1]);
        for (String name : new String[] {"conf", "data", "extensions"}) {
            Files.createDirectories(directory.resolve(name));
        }
        Path config = directory.resolve("conf").resolve("config.xml");
        Files.writeString(config, CONFIG.formatted(args[0], args[2], args[3], args[4]));
        // Without an extension that authenticates clients, an embedded HiveMQ accepts every client.
        EmbeddedHiveMQ.builder()
            .withConfigurationFolder(config.getParent())
            .withDataFolder(directory.resolve("data"))
            .withExtensionsFolder(directory.resolve("extensions"))
            .build()
            .start()
            .join();
        output.println("ready");
        Thread.currentThread().join();
    }
}
