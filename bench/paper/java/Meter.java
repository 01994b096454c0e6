import java.util.Arrays;
import java.util.Random;

/** What every client shares: the messages, and a line "messages nanoseconds" for each hundredth of them. */
final class Meter {
    private static final int POOL_BYTES = 1 << 20;

    private final long total;
    private final long step;
    private final byte[] pool = new byte[POOL_BYTES];
    private final int messageBytes;
    private final StringBuilder lines = new StringBuilder();
    private long seen;
    private long startedNs;

    Meter(long total, int messageBytes) {
        this.total = total;
        this.step = Math.max(1, total / 100);
        this.messageBytes = messageBytes;
        new Random(1).nextBytes(pool);
    }

    /** The time counts from now on. */
    void start() {
        startedNs = System.nanoTime();
    }

    /** The next message: never the same as the one before. */
    byte[] message() {
        int at = (int) (seen * 7 % (POOL_BYTES - messageBytes));
        return Arrays.copyOfRange(pool, at, at + messageBytes);
    }

    /** One was sent, or came; true once that was the last. A consumer's time counts from its first message on. */
    boolean count() {
        if (startedNs == 0) {
            start();
        }
        seen++;
        if (seen % step == 0 && seen < total) {
            note();
        }
        return seen >= total;
    }

    /** Everything is done: prints what was noted. */
    void finish() {
        note();
        System.out.print(lines);
        System.out.flush();
    }

    private void note() {
        lines.append(seen).append(' ').append(System.nanoTime() - startedNs).append('\n');
    }
}
