"""Waits at known places for known times: sleeps 60 % of the time and waits for a lock 25 %, and
says how long that was, in a thread of its own. The argument is how many seconds it takes."""

import json
import sys
import threading
import time

waited = {"sleeping": 0.0, "locked": 0.0}
lock = threading.Lock()


def sleeping():
    begun = time.monotonic()
    time.sleep(0.06)
    waited["sleeping"] += time.monotonic() - begun


def locked():
    lock.acquire()
    release = threading.Timer(0.025, lock.release)
    release.start()
    begun = time.monotonic()
    lock.acquire()
    waited["locked"] += time.monotonic() - begun
    lock.release()
    release.join()


def loop(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sleeping()
        locked()


def main():
    print("ready", flush=True)
    sys.stdin.readline()
    t = threading.Thread(target=loop, args=(float(sys.argv[1]),))
    t.start()
    t.join()
    print(json.dumps(waited), flush=True)
    sys.stdin.readline()


main()
