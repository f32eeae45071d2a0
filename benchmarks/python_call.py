#!/usr/bin/env python3
"""What a call costs in Python over the same call in C++: an all_reduce of 4 KiB between two ranks.

    PYTHONPATH=build/release/python python3 benchmarks/python_call.py [--call-bench PROGRAM]

Both sides in turn, medians. Every result is checked.
"""

import argparse
import json
import multiprocessing
import statistics
import subprocess
import time

import numpy

import tutti


def time_calls(ticket, rank, rounds, connection):
    comm = tutti.Communicator(rank, 2, ticket)
    data = numpy.empty(1024, numpy.float32)
    seconds = []
    for round_ in range(rounds):
        data.fill(rank + 1)
        start = time.perf_counter()
        comm.all_reduce(data)
        took = time.perf_counter() - start
        assert data[0] == 3 and data[-1] == 3
        if round_ >= rounds // 10:
            seconds.append(took)
    connection.send(statistics.median(seconds) * 1e6)


def in_python(rounds):
    context = multiprocessing.get_context("fork")
    ticket = tutti.NcclIdHolder()
    ours, theirs = context.Pipe(duplex=False)
    ranks = [context.Process(target=time_calls, args=(ticket, rank, rounds, theirs))
             for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    medians = [ours.recv() for _ in ranks]
    for rank in ranks:
        rank.join()
    return medians[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--call-bench", default="build/release/bin/call_bench")
    parser.add_argument("--rounds", type=int, default=20000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    python, cpp = [], []
    for _ in range(options.repeat):
        cpp.append(float(subprocess.run([options.call_bench, str(options.rounds)], check=True,
                                        capture_output=True, text=True).stdout))
        python.append(in_python(options.rounds))
    result = {"python_us": statistics.median(python), "cpp_us": statistics.median(cpp)}
    result["over_us"] = result["python_us"] - result["cpp_us"]
    print(f"all_reduce of 4 KiB, 2 ranks, median: Python {result['python_us']:.2f} us, "
          f"C++ {result['cpp_us']:.2f} us, over {result['over_us']:.2f} us")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
