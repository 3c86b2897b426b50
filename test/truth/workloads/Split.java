import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;

/**
 * Burns the CPU: 70 % in burnA, 30 % in burnB, both called by checkout. Says at its end how much
 * it was, in seconds. Argument: seconds.
 */
public class Split {
  static final ThreadMXBean threads = ManagementFactory.getThreadMXBean();
  static long a, b;

  static long cpu() {
    return threads.getCurrentThreadCpuTime();
  }

  static int spin(int n) {
    int x = 1;
    for (int i = 0; i < n; i++) x = x * 17 + i * i;
    return x;
  }

  static int burnA(long until) {
    int x = 0;
    do x ^= spin(2000); while (cpu() < until);
    return x;
  }

  static int burnB(long until) {
    int x = 0;
    do x ^= spin(2000); while (cpu() < until);
    return x;
  }

  int checkout() {
    long t0 = cpu();
    int x = burnA(t0 + 7_000_000);
    long t1 = cpu();
    x ^= burnB(t1 + 3_000_000);
    a += t1 - t0;
    b += cpu() - t1;
    return x;
  }

  public static void main(String[] args) {
    Split split = new Split();
    long end = System.nanoTime() + (long) (1e9 * Double.parseDouble(args[0]));
    int x = 0;
    while (System.nanoTime() < end) x ^= split.checkout();
    if (x == 1) System.err.println("never mind");
    System.out.println("{\"functions\": {\"burnA\": " + a / 1e9 + ", \"burnB\": " + b / 1e9 + "}, \"total\": " + cpu() / 1e9 + "}");
  }
}
