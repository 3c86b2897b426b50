"""Burns CPU time at known points, and says how it got there: its stacks as the interpreter
itself knows them, and the CPU time of each point. Arguments: seconds a point, and the points,
all if there are none. Says that it is ready, waits for a line, and again when it is done,
after a line of JSON."""

import asyncio
import concurrent.futures
import functools
import json
import sys
import threading
import time
import traceback

points = {}
lock = threading.Lock()
seconds = 1.0


def name_of(code):
    return getattr(code, "co_qualname", code.co_name)


def burn(point, share=1.0):
    """Is called at each point; its callers are what is looked for."""
    frames = [[name_of(f.f_code), f.f_code.co_filename, line] for f, line in traceback.walk_stack(sys._getframe())]
    begun = time.thread_time()
    end = begun + seconds * share
    while time.thread_time() < end:
        for _ in range(1000):
            pass
    with lock:
        p = points.setdefault(point, {"frames": frames, "cpu": 0.0})
        p["cpu"] += time.thread_time() - begun


def nested():
    def two():
        def three():
            burn("nested")

        three()

    two()


class Shop:
    def checkout(self):
        burn("method")

    @classmethod
    def open(cls):
        burn("class_method")
        return cls()

    @property
    def price(self):
        burn("property", 0.3)
        return 1


def method():
    shop = Shop.open()
    shop.checkout()
    return shop.price


def generate():
    for i in range(3):
        burn("generator", 1 / 3)
        yield i


def generator():
    return sum(i for i in generate())


async def leaf():
    await asyncio.sleep(0)
    burn("coroutine")


async def branch():
    await leaf()


def coroutine():
    async def main():
        await asyncio.gather(branch(), asyncio.sleep(0))

    asyncio.run(main())


def work(i):
    burn("pool", 0.5)


def pool():
    with concurrent.futures.ThreadPoolExecutor(2) as p:
        list(p.map(work, range(2)))


def key(v):
    burn("callback", 1 / 3)
    return v


def callback():
    """From Python into C and back: into a function of the interpreter, and one of a module."""
    sorted([3, 1, 2], key=key)
    functools.reduce(lambda a, b: burn("reduce", 0.5), [1, 2, 3])


def größe():
    def 漢字():
        def 𐐀𐐁():
            burn("größe 漢字 𐐀")

        𐐀𐐁()

    漢字()


def deep(n=100):
    if n:
        return deep(n - 1)
    burn("deep")


def raising():
    try:
        raise ValueError
    except ValueError:
        burn("except", 0.5)
    finally:
        burn("finally", 0.5)


def compiled():
    """Code without a file, and with lines far apart."""
    burn_at = 5000
    source = "\n" * burn_at + "def late():\n" + "\n" * 300 + "    burn('compiled')\nlate()\n"
    exec(compile(source, "<text>", "exec"), {"burn": burn})


def long_names():
    """Longer than is kept of them while a thread is stopped for its sample."""
    name = "n" * 1000
    code = compile("def %s():\n  burn('long')\n%s()" % (name, name), "/" + "d" * 1000 + "/end.py", "exec")
    exec(code, {"burn": burn})


all_points = [nested, method, generator, coroutine, pool, callback, größe, deep, raising, compiled, long_names]


def main():
    global seconds
    seconds = float(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    wanted = sys.argv[2:]
    for f in all_points:
        if not wanted or f.__name__ in wanted:
            f()
    print(json.dumps({"points": points, "version": sys.version_info[:2], "cpu": time.process_time()}), flush=True)
    sys.stdin.readline()


main()
