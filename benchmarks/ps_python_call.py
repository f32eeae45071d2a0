#!/usr/bin/env python3
"""What a lookup of 8192 ids costs in Python over the same lookup in C++.

    PYTHONPATH=build/release/python python3 benchmarks/ps_python_call.py [--call-bench PROGRAM]

One worker, whose server is a thread, and a table of 2^20 rows of 16 floats, in each of several
processes: C++, NumPy, and PyTorch where it is installed. Each looks up to memory that it has ("out")
and to a new array, in runs of 15 calls, of which the last is checked: what a check leaves in the
caches is no part of a lookup. The runs take turns; medians of all, and of the differences of runs
that follow each other.
"""

import json
import statistics
import subprocess
import sys
import time

import numpy
import python_call

from tutti import ps

ROWS, DIM, BATCH, STRIDE, RUN = 1 << 20, 16, 8192, 40_503, 16  # as in ps_call_bench.cpp


def ids_of(batch):
    return numpy.arange(batch * BATCH, (batch + 1) * BATCH) * STRIDE % ROWS


def values_of(ids):
    """All elements of each row."""
    return numpy.repeat((ids % 4096).astype(numpy.float32)[:, None], DIM, axis=1)


def time_run(table, ids, run, out):
    """Microseconds a call; the first, whose code others may have driven from the caches, does not
    count."""
    batches = [ids[(run * RUN + call) % len(ids)] for call in range(RUN)]
    rows = table.lookup(batches[0], out)
    start = time.perf_counter()
    for batch in batches[1:]:
        rows = table.lookup(batch, out)
    took = time.perf_counter() - start
    assert numpy.array_equal(numpy.asarray(rows), values_of(numpy.asarray(batches[-1])))
    return took / (RUN - 1) * 1e6


def serve(library):
    """What ps_call_bench does, with arrays of that library."""
    ids = [ids_of(batch) for batch in range(ROWS // BATCH)]
    own = numpy.empty((BATCH, DIM), numpy.float32)
    table = ps.Embedding("rows", DIM, optimizer=ps.Sgd(lr=1.0), init=ps.Constant(0.0))
    with ps.start([table], mode=ps.Sync(), servers="thread") as fleet:
        for batch in ids:
            table.push(batch, -values_of(batch))
            fleet.step()
        if library == "torch":
            import torch

            ids, own = [torch.from_numpy(batch) for batch in ids], torch.from_numpy(own)
        for run, line in enumerate(sys.stdin):
            print(time_run(table, ids, run, own if line == "out\n" else None), flush=True)


class Side:
    """A process that times runs when it is asked."""

    def __init__(self, *command):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True, bufsize=1)

    def time_run(self, into):
        self._process.stdin.write(f"{into}\n")
        return float(self._process.stdout.readline())

    def end(self):
        self._process.stdin.close()
        assert self._process.wait() == 0


def compare(libraries, options):
    """Microseconds by side and where the rows go, in the order of the turns."""
    times = {(side, into): [] for side in ("C++", *libraries) for into in ("out", "new")}
    for _ in range(options.repeat):
        sides = {"C++": Side(options.call_bench)}
        sides.update({library: Side(sys.executable, __file__, library) for library in libraries})
        for round_ in range(options.rounds):
            for side, into in times:
                took = sides[side].time_run(into)
                if round_ >= options.rounds // 10:
                    times[side, into].append(took)
        for side in sides.values():
            side.end()
    return times


def main():
    if sys.argv[1:] in (["numpy"], ["torch"]):
        return serve(sys.argv[1])
    options = python_call.parse_arguments(__doc__, "ps_call_bench", 200)
    libraries = ["numpy"]
    try:
        import torch  # noqa: F401
        libraries.append("torch")
    except ImportError:
        print("WITHOUT PyTorch: it is not installed", flush=True)
    times = compare(libraries, options)
    for library in libraries:
        for into in ("out", "new"):
            mine, cpp = times[library, into], times["C++", into]
            result = {"side": library, "into": into, "python_us": statistics.median(mine),
                      "cpp_us": statistics.median(cpp),
                      "over_us": statistics.median(a - b for a, b in zip(mine, cpp))}
            print(f"lookup of {BATCH} ids, {into}: {library} {result['python_us']:.1f} us, "
                  f"C++ {result['cpp_us']:.1f} us, over {result['over_us']:.1f} us")
            print(json.dumps(result))


if __name__ == "__main__":
    main()
