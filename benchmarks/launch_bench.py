#!/usr/bin/env python3
"""What starting ranks costs: launch_bench.py --tutti build/release/bin/tutti [--mpiexec mpiexec]

Two ranks of `true`, in turns; how long after a rank's end the command is over, while the other would
sleep on; and how fast output passes, into logs on disk and through a pipe."""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def timed(command, **options):
    start = time.perf_counter()
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    return time.perf_counter() - start, result


def launchers(arguments):
    """The command line before the program for two ranks, by launcher."""
    mpiexec = [arguments.mpiexec, "--oversubscribe", "--bind-to", "none", "-n", "2"]
    found = {"tutti run": [arguments.tutti, "run", "-n", "2"], "mpiexec": mpiexec}
    if torchrun := shutil.which("torchrun"):
        found["torchrun"] = [torchrun, "--no-python", "--nproc-per-node", "2"]
    return {name: words for name, words in found.items() if shutil.which(words[0])}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    # Of the build whose package PYTHONPATH names, if it does.
    built = os.path.join(os.environ.get("PYTHONPATH", "build/release/python"), "bin", "tutti")
    parser.add_argument("--tutti", default=built, type=os.path.abspath)
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=1000)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="tutti-launch-bench-") as folder:
        ends = os.path.join(folder, "ends.sh")
        with open(ends, "w", encoding="utf-8") as file:
            # One of them fails when both are there.
            file.write(f"""#!/bin/bash
rank=${{TUTTI_RANK:-${{OMPI_COMM_WORLD_RANK:-$RANK}}}}
touch {folder}/ready.$rank
[ $rank = 0 ] && exec sleep 20
while [ ! -e {folder}/ready.0 ]; do sleep 0.005; done
sleep 0.2
date +%s.%N > {folder}/end
exit 7
""")
        os.chmod(ends, 0o755)
        starts, failures, codes = {}, {}, {}
        for _ in range(arguments.repeat):
            for name, words in launchers(arguments).items():
                starts.setdefault(name, []).append(timed([*words, "true"], cwd=folder)[0])
                for rank in (0, 1):
                    if os.path.exists(f"{folder}/ready.{rank}"):
                        os.remove(f"{folder}/ready.{rank}")
                _, result = timed([*words, ends], cwd=folder, stdout=subprocess.DEVNULL)
                over = time.time()
                with open(f"{folder}/end", encoding="utf-8") as file:
                    failures.setdefault(name, []).append(over - float(file.read()))
                codes[name] = result.returncode
        print("| | 2 ranks of `true`, ms | from a rank's end to the command's, ms | code of exit 7 |")
        print("|---|---|---|---|")
        for name in starts:
            print(f"| {name} | {statistics.median(starts[name]) * 1e3:.1f} | "
                  f"{statistics.median(failures[name]) * 1e3:.1f} | {codes[name]} |")

        writer = ["head", "-c", str(arguments.megabytes * 1_000_000), "/dev/zero"]
        lines = ["sh", "-c", f"yes 'a line of some length, as programs print them' | "
                             f"head -c {arguments.megabytes * 1_000_000}"]
        run = [arguments.tutti, "run"]
        for what, command in (
            ("without a launcher", writer),
            ("rank 0, log and pipe", [*run, "-n", "1", *writer]),
            ("two ranks, logs alone", [*run, "-n", "2", "--tee", "none", *writer]),
            ("two ranks, lines with their ranks", [*run, "-n", "2", "--tee", "all", *lines]),
        ):
            reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
            seconds, _ = timed(command, cwd=folder, stdout=reader.stdin)
            reader.stdin.close()
            reader.wait()
            print(f"{what}: {arguments.megabytes / seconds:.0f} MB/s a rank", flush=True)
            shutil.rmtree(os.path.join(folder, "log"), ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
