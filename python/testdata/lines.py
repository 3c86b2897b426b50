"""Prints, as a line of JSON, the line tables of some code and what the interpreter itself
says of them: run it with each version, and keep what it prints in lines-VERSION.json.

    for v in 3.8 3.9 3.10 3.11 3.12 3.13; do python$v lines.py > lines-$v.json; done
"""

import base64
import dis
import json
import sys
import types

SOURCE = '''
import os
def f(a, b=[i for i in range(3)], *c, **d):
    """doc"""
    try:
        x = (a +
             b[0]
             + len(c))
        for i in range(x):
            if i % 2:
                continue
            yield i
    except (ValueError,
            TypeError) as e:
        raise RuntimeError from e
    finally:
        with open(
            "x"
        ) as y:
            pass
    while True:
        break
''' + "\n" * 400 + '''
    return lambda v: (
        v,
''' + "        1,\n" * 150 + '''
        v.w)

async def g(x):
    async with x as y:
        async for z in y:
            await z
    return {k: v for k, v in x}
class A:
    @property
    def p(self): return 1; x = 2
''' + "x = f(1)\n" * 300


def codes(c):
    yield c
    for k in c.co_consts:
        if isinstance(k, types.CodeType):
            for d in codes(k):
                yield d


out = []
for c in codes(compile(SOURCE, "x.py", "exec")):
    n = len(c.co_code)
    lines = [0] * (n // 2)  # 0: none
    if sys.version_info >= (3, 10):
        for start, end, line in c.co_lines():
            for at in range(start, end, 2):
                lines[at // 2] = line or 0
        table = c.co_linetable
    else:
        starts = dict(dis.findlinestarts(c))
        line = c.co_firstlineno
        for at in range(0, n, 2):
            line = starts.get(at, line)
            lines[at // 2] = line
        table = c.co_lnotab
    out.append({"table": base64.b64encode(table).decode(), "first": c.co_firstlineno, "lines": lines})
print(json.dumps(out, separators=(",", ":")))
