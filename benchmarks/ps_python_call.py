#!/usr/bin/env python3
"""What a lookup of 8192 ids costs in Python over the same lookup in C++.

    PYTHONPATH=build/release/python python3 benchmarks/ps_python_call.py [--call-bench PROGRAM]

One worker, whose server is a thread, and a table of 2^20 rows of 16 floats. C++ writes to memory
that it has; so do NumPy and PyTorch ("out"), which also make a new array. All in turn, medians.
Every row is checked.
"""

import multiprocessing
import statistics
import time

import numpy
import python_call

from tutti import ps

ROWS, DIM, BATCH, STRIDE = 1 << 20, 16, 8192, 40_503  # as in ps_call_bench.cpp


def ids_of(batch):
    return numpy.arange(batch * BATCH, (batch + 1) * BATCH) * STRIDE % ROWS


def values_of(ids):
    """All elements of each row."""
    return numpy.repeat((ids % 4096).astype(numpy.float32)[:, None], DIM, axis=1)


def time_lookups(library, with_out, rounds, connection):
    as_ids = numpy.asarray
    rows = numpy.empty((BATCH, DIM), numpy.float32)
    if library == "torch":
        import torch

        as_ids, rows = torch.from_numpy, torch.from_numpy(rows)
    out = rows if with_out else None
    table = ps.Embedding("rows", DIM, optimizer=ps.Sgd(lr=1.0), init=ps.Constant(0.0))
    with ps.start([table], mode=ps.Sync(), servers="thread") as fleet:
        for batch in range(ROWS // BATCH):
            table.push(ids_of(batch), -values_of(ids_of(batch)))
            fleet.step()
        seconds = []
        for round_ in range(rounds):
            ids = ids_of(round_)
            asked = as_ids(ids)
            start = time.perf_counter()
            rows = table.lookup(asked, out)
            took = time.perf_counter() - start
            assert numpy.array_equal(numpy.asarray(rows), values_of(ids)), "a wrong row"
            if round_ >= rounds // 10:
                seconds.append(took)
    connection.send(statistics.median(seconds) * 1e6)


def in_python(library, with_out):
    def side(rounds):
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=time_lookups, args=(library, with_out, rounds, theirs))
        worker.start()
        theirs.close()  # so that a worker that fails ends the wait
        median = ours.recv()
        worker.join()
        return median
    return side


def main():
    options = python_call.parse_arguments(__doc__, "ps_call_bench", 2000)
    libraries = ["numpy"]
    try:
        import torch  # noqa: F401
        libraries.append("torch")
    except ImportError:
        print("WITHOUT PyTorch: it is not installed", flush=True)
    sides = {f"{library}{', out' * with_out}": in_python(library, with_out)
             for library in libraries for with_out in (True, False)}
    python_call.compare(f"lookup of {BATCH} ids", sides, options)


if __name__ == "__main__":
    main()
