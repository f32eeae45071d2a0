#!/usr/bin/env python3
"""Exact top-K on one core beside torch.topk and numpy's argpartition.

Rounds of topk_bench, torch.topk of |x| and np.argpartition of |x| take turns; medians of their
microseconds, a JSON line for each density. torch and numpy get magnitudes made beforehand.

    topk_vs_torch.py [--build DIR] [--n 16777216] [--density 0.001,0.01] [--rounds 3]
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


def microseconds(action):
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e6


def ours(program, n, density):
    command = [program, "--n", str(n), "--density", str(density), "--runs", "3"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    if not result["checked"]:
        sys.exit("topk_bench: wrong result")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=REPOSITORY / "build/release")
    parser.add_argument("--n", type=int, default=16 << 20)
    parser.add_argument("--density", default="0.001,0.01")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    torch.set_num_threads(1)
    values = np.random.default_rng(1).standard_normal(args.n, dtype=np.float32)
    magnitudes = np.abs(values**3 * np.float32(1e-3))
    tensor = torch.from_numpy(magnitudes)
    for density in [float(text) for text in args.density.split(",")]:
        k = -int(-density * args.n // 1)
        times = {"us": [], "torch_us": [], "numpy_us": []}
        for _ in range(args.rounds):
            times["us"].append(ours(args.build / "bin/topk_bench", args.n, density)["us"])
            times["torch_us"].append(microseconds(lambda: torch.topk(tensor, k, sorted=False)))
            times["numpy_us"].append(microseconds(lambda: np.argpartition(magnitudes, -k)))
        line = {name: statistics.median(each) for name, each in times.items()}
        line["times_torch"] = line["torch_us"] / line["us"]
        line["times_numpy"] = line["numpy_us"] / line["us"]
        print(json.dumps({"n": args.n, "density": density, "k": k, **line}), flush=True)


if __name__ == "__main__":
    main()
