#!/usr/bin/env python3
"""How long pushes wait for evictions: a step of a row and its answer, by how rows are evicted.

    PYTHONPATH=build/release/python python3 benchmarks/ps_python_evictions.py [--rows N] [--steps N]

One worker, whose server is a thread, and a table of rows of 16 floats that all have been pushed
before. A step pushes one of them and waits until that is applied; with max_bytes, of which the table
has reached as much as it may, 8192 new ones. What is left then is checked.
"""

import argparse
import statistics
import time

import numpy

from tutti import ps

DIM, BATCH = 16, 8192
BYTES = 4 * DIM + 16 + 29  # of a row, at most


def fill(table, fleet, rows):
    gradients = numpy.ones((1 << 18, DIM), numpy.float32)
    for first in range(0, rows, len(gradients)):
        ids = numpy.arange(first, min(first + len(gradients), rows))
        table.push(ids, gradients[:len(ids)])
        fleet.step()
    fleet.flush()


def measure(rows, steps, evict, batch):
    """Milliseconds of each step, and how many rows are left."""
    table = ps.Embedding("rows", DIM, optimizer=ps.Sgd(lr=1.0), init=ps.Constant(0.0), evict=evict)
    with ps.start([table], mode=ps.Async(), servers="thread") as fleet:
        fill(table, fleet, rows)
        gradients, took = numpy.ones((batch, DIM), numpy.float32), []
        for step in range(steps):
            ids = numpy.arange(batch) + (rows + step * batch if batch > 1 else 0)
            start = time.perf_counter()
            table.push(ids, gradients)
            fleet.step()
            fleet.flush()
            took.append((time.perf_counter() - start) * 1e3)
        stats = fleet.stats()["server"]["tables"]["rows"]
        assert (table.lookup(ids) == (-1.0 if batch > 1 else -steps - 1.0)).all()
    assert stats["rows"] == stats["created"] - stats["evicted"]
    return took, stats


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1 << 23)
    parser.add_argument("--steps", type=int, default=600)
    arguments = parser.parse_args()
    rows, steps = arguments.rows, arguments.steps
    print(f"{'evictions':>28} {'median ms':>10} {'99 %':>8} {'longest':>8} {'evicted':>9} {'left':>9}")
    for name, evict, batch in (
            ("none", ps.Evict(), 1),
            ("max_age=4096", ps.Evict(max_age=4096), 1),
            ("max_age=256", ps.Evict(max_age=256), 1),
            ("none, 8192 new rows", ps.Evict(), BATCH),
            ("max_bytes, 8192 new rows", ps.Evict(max_bytes=rows * BYTES * 9 // 10), BATCH)):
        took, stats = measure(rows, steps, evict, batch)
        took.sort()
        print(f"{name:>28} {statistics.median(took):10.3f} {took[len(took) * 99 // 100]:8.2f} "
              f"{took[-1]:8.2f} {stats['evicted']:9} {stats['rows']:9}", flush=True)


if __name__ == "__main__":
    main()
