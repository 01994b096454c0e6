import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.Base64;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

/** Reads keys in base64, each with a number of partitions before it; prints the hash and the partition of the key. */
public class KeyPartitions {
    public static void main(String[] arguments) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split(" ", 2);
            byte[] key = Base64.getDecoder().decode(fields[1]);
            int partition = BuiltInPartitioner.partitionForKey(key, Integer.parseInt(fields[0]));
            answers.append(Utils.murmur2(key)).append(' ').append(partition).append('\n');
        }
        System.out.print(answers);
    }
}
