import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * HDFS with one data node, on free ports of the loopback interface. The program prints its URL, and
 * ends with its standard input. Its arguments are the directory of its data, and a user, who gets a
 * home directory.
 */
public final class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        MiniDFSCluster cluster =
                new MiniDFSCluster.Builder(new Configuration(), new File(arguments[0]))
                        .numDataNodes(1)
                        .build();
        cluster.waitActive();
        FileSystem files = cluster.getFileSystem();
        Path home = new Path("/user/" + arguments[1]);
        files.mkdirs(home);
        files.setOwner(home, arguments[1], arguments[1]);
        System.out.println(cluster.getURI());
        while (System.in.read() >= 0) {
            // The parent process writes nothing: its end closes the input.
        }
        System.exit(0);
    }
}
