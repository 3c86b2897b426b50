"""Burns 70 % of a CPU in one function and 30 % in another, for the seconds that the argument
says, and prints how much it was; waits for a line before and after."""

import json
import sys
import time


def until(end):
    while time.thread_time() < end:
        for _ in range(200):
            pass


def burn_a():
    until(time.thread_time() + 0.007)


def burn_b():
    until(time.thread_time() + 0.003)


def main():
    print("ready", flush=True)
    sys.stdin.readline()
    used = {"burn_a": 0.0, "burn_b": 0.0}
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        for f in burn_a, burn_b:
            begun = time.thread_time()
            f()
            used[f.__name__] += time.thread_time() - begun
    print(json.dumps({"functions": used, "total": time.process_time()}), flush=True)
    sys.stdin.readline()


main()
