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


def parse_arguments(description, call_bench, rounds):
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--call-bench", default=f"build/release/bin/{call_bench}")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--repeat", type=int, default=5)
    return parser.parse_args()


def compare(what, sides, options):
    """Prints medians of turns of C++ and of each side, a name and a function of the rounds that
    returns microseconds."""
    cpp, turns = [], {name: [] for name in sides}
    for _ in range(options.repeat):
        cpp.append(float(subprocess.run([options.call_bench, str(options.rounds)], check=True,
                                        capture_output=True, text=True).stdout))
        for name, side in sides.items():
            turns[name].append(side(options.rounds))
    for name, values in turns.items():
        result = {"side": name, "python_us": statistics.median(values),
                  "cpp_us": statistics.median(cpp)}
        result["over_us"] = result["python_us"] - result["cpp_us"]
        print(f"{what}, median: {name} {result['python_us']:.2f} us, "
              f"C++ {result['cpp_us']:.2f} us, over {result['over_us']:.2f} us")
        print(json.dumps(result))


def main():
    options = parse_arguments(__doc__, "call_bench", 20000)
    compare("all_reduce of 4 KiB, 2 ranks", {"Python": in_python}, options)


if __name__ == "__main__":
    main()
