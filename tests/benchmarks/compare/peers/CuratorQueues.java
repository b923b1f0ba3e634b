import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.queue.DistributedQueue;
import org.apache.curator.framework.recipes.queue.QueueBuilder;
import org.apache.curator.framework.recipes.queue.QueueConsumer;
import org.apache.curator.framework.recipes.queue.QueueSerializer;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** Measures Curator's DistributedQueue: the same lines of words as the agents in Python, answered in JSON. */
public final class CuratorQueues {
    private static final int PATIENCE_S = 300;
    private static final byte[] PAYLOAD = new byte[100];

    private static final QueueSerializer<byte[]> BYTES = new QueueSerializer<>() {
        public byte[] serialize(byte[] item) { return item; }
        public byte[] deserialize(byte[] bytes) { return bytes; }
    };

    private final CuratorFramework client;
    private final String root;
    private String verb;
    private String path;
    private int tasks;
    private DistributedQueue<byte[]> queue;
    private volatile CountDownLatch left;

    private CuratorQueues(String hosts, String root) throws InterruptedException {
        this.root = root;
        client = CuratorFrameworkFactory.newClient(hosts, new ExponentialBackoffRetry(100, 5));
        client.start();
        client.blockUntilConnected();
    }

    public static void main(String[] words) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // what libraries print is no answer
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        CuratorQueues queues = new CuratorQueues(words[0], words[1]);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(queues.answered(line.trim().split(" ")));
        }
        queues.client.close();
    }

    private String answered(String[] words) {
        try {
            return answer(words);
        } catch (Exception error) {
            return "{\"error\": \"" + error.toString().replaceAll("[\"\\\\\\p{Cntrl}]", "'") + "\"}";
        }
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "fill":
                about(words);
                fill();
                return "{}";
            case "open":
                about(words);
                open();
                return "{}";
            case "run":
                return measured();
            default:
                if (queue != null) queue.close();
                queue = null;
                return "{}";
        }
    }

    private void about(String[] words) {
        verb = words[1];
        path = root + "-peers/" + words[2];
        tasks = Integer.parseInt(words[3]);
    }

    /** What is to be consumed. */
    private void fill() throws Exception {
        if (verb.startsWith("put")) return;
        try (DistributedQueue<byte[]> filled = builder(null).buildQueue()) {
            filled.start();
            for (int at = 0; at < tasks; at++) filled.put(PAYLOAD);
            if (!filled.flushPuts(PATIENCE_S, TimeUnit.SECONDS)) throw new IllegalStateException("puts are slow");
        }
    }

    private QueueBuilder<byte[]> builder(QueueConsumer<byte[]> consumer) {
        return QueueBuilder.builder(client, consumer, BYTES, path);
    }

    /** A producer is started before it is measured; a consumer begins with its start. */
    private void open() throws Exception {
        if (verb.startsWith("put")) {
            queue = builder(null).buildQueue();
            queue.start();
            return;
        }
        left = new CountDownLatch(tasks);
        QueueBuilder<byte[]> built = builder(new QueueConsumer<>() {
            public void consumeMessage(byte[] message) { left.countDown(); }
            public void stateChanged(CuratorFramework client, ConnectionState state) { }
        });
        queue = (verb.equals("consume-locked") ? built.lockPath(path + "-locks") : built).buildQueue();
    }

    private String measured() throws Exception {
        double begun = System.currentTimeMillis() / 1000.0;
        long cpu = cpu(), wall = System.nanoTime();
        work();
        double seconds = (System.nanoTime() - wall) / 1e9, spent = (cpu() - cpu) / 1e9;
        return String.format(Locale.ROOT,
            "{\"tasks\": %d, \"seconds\": %.6f, \"cpu\": %.6f, \"begun\": %.3f, \"ended\": %.3f}",
            tasks, seconds, spent, begun, begun + seconds);
    }

    private void work() throws Exception {
        if (verb.startsWith("put")) {
            for (int at = 0; at < tasks; at++) {
                queue.put(PAYLOAD);
                if (verb.equals("put")) flush();
            }
            flush();
            return;
        }
        queue.start();
        if (!left.await(PATIENCE_S, TimeUnit.SECONDS)) throw new IllegalStateException(left.getCount() + " are left");
    }

    private void flush() throws Exception {
        if (!queue.flushPuts(PATIENCE_S, TimeUnit.SECONDS)) throw new IllegalStateException("puts are slow");
    }

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }
}
