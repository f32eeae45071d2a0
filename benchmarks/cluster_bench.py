#!/usr/bin/env python3
"""Runs cluster_bench, or another program of several hosts, on hosts that are network namespaces.

    benchmarks/cluster_bench.py [--layouts 3x1,2x1,2x2,4x2] [--rate 1gbit [--burst 9100]]
        [--congestion cubic] [--json FILE] [--bench build/release/bin/cluster_bench] [--limit 1800]
        [options of the program]

Needs root and iproute2 (tests/cluster/cluster.py). A layout is hosts x ranks of each. --rate shapes
each host's link in both directions by a token bucket (as tc has it: 1gbit, 100mbit); without it links
are as fast as the machine. After a silence the bucket lets --burst bytes pass at once, 256 KiB if it is
not given; one packet, 9100, comes closest to a real link. --congestion is what controls the congestion
of the hosts' TCP connections, without it what the machine has: one of those in
/proc/sys/net/ipv4/tcp_allowed_congestion_control, to which root adds others. The MTU is 9000. JSON Lines
of all layouts go into one file. A layout that takes more than --limit seconds is ended, as where mpiexec
hangs after a rank has aborted.
"""
import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).absolute().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

import cluster  # noqa: E402


def gigabits(rate):
    for unit, factor in (("gbit", 1), ("mbit", 1e-3)):
        if rate.endswith(unit):
            return float(rate[:-len(unit)]) * factor
    sys.exit(f"--rate is '{rate}', but must be like 1gbit or 100mbit")


def run(arguments, layout, rest, lines):
    hosts, ranks = (int(number) for number in layout.split("x"))
    with cluster.Cluster(hosts, ranks) as nodes, tempfile.NamedTemporaryFile("r") as json:
        command = [str(arguments.bench), *rest]
        if arguments.congestion:
            nodes.congestion(arguments.congestion)
        if arguments.rate:
            for number in range(1, hosts + 1):
                nodes.rate(f"node{number}", arguments.rate, arguments.burst)
            command += ["--gbps", str(gigabits(arguments.rate))]
        if lines:
            command += ["--json", json.name]
        job = nodes.start(arguments.mpiexec, hosts * ranks, command, {"TUTTI_TIMEOUT": "60"})
        try:
            code = job.wait(arguments.limit)
        except subprocess.TimeoutExpired:
            job.kill()  # the ranks end with their hosts
            sys.exit(f"{layout}: the benchmark has not ended within {arguments.limit:g} s")
        if code:
            sys.exit(f"{layout}: the benchmark ended with {code}")
        if lines:
            lines.write(Path(json.name).read_text(encoding="utf-8"))
            lines.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default="3x1,2x1,2x2,4x2")
    parser.add_argument("--rate")
    parser.add_argument("--burst", default="256k")
    parser.add_argument("--congestion", choices=cluster.congestion_controls())
    parser.add_argument("--json")
    parser.add_argument("--bench", type=Path, default=ROOT / "build/release/bin/cluster_bench")
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--limit", type=float, default=1800.0)
    arguments, rest = parser.parse_known_args()
    if not cluster.is_possible():
        sys.exit("no network namespaces here: they need root and iproute2")
    arguments.bench = arguments.bench.absolute()
    cluster.remove_when_terminated()
    with open(arguments.json or os.devnull, "w", encoding="utf-8") as lines:
        for layout in arguments.layouts.split(","):
            run(arguments, layout, rest, lines if arguments.json else None)


if __name__ == "__main__":
    main()
