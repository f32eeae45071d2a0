#!/usr/bin/env python3
"""torch.topk on what gpu_kernels_bench has selected from: the same elements, and how long it takes.

    topk_vs_torch.py FOLDER [--runs 11]

FOLDER is what gpu_kernels_bench --out has written. A JSON line for each of its top-Ks: microseconds
of torch.topk on magnitudes made beforehand (torch_us) and with making them (torch_abs_us), medians
of the runs; `checked`: torch chose the same elements, but for other ones of the least magnitude.
Status 1 if an element differs.
"""

import argparse
import json
import pathlib
import statistics
import sys

import torch


def median_us(runs, action):
    """The median of `runs` runs, after one that warms up."""
    times = []
    for _ in range(runs + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[1:])


def read(path, dtype):
    count = path.stat().st_size // 4
    return torch.from_file(str(path), size=count, dtype=dtype).cuda()


def same_elements(magnitudes, ours, theirs):
    """Whether both are the same indices, up to ties at the least magnitude."""
    if len(ours) != len(theirs):
        return False
    least = magnitudes[theirs].min()
    chosen = torch.zeros(len(magnitudes), dtype=torch.int8, device=magnitudes.device)
    chosen[ours] += 1
    chosen[theirs] -= 1
    return bool((magnitudes[chosen != 0] == least).all()) and bool(magnitudes[ours].min() == least)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--runs", type=int, default=11)
    args = parser.parse_args()
    values = read(args.folder / "values.f32", torch.float32)
    magnitudes = values.abs()
    good = True
    for path in sorted(args.folder.glob("top_k_*.u32")):
        ours = read(path, torch.int32).long()
        k = len(ours)
        theirs = torch.topk(magnitudes, k, sorted=False).indices
        checked = same_elements(magnitudes, ours, theirs)
        del theirs
        line = {
            "kernel": f"torch_{path.stem}",
            "n": len(values),
            "k": k,
            "torch_us": median_us(
                args.runs, lambda: torch.topk(magnitudes, k, sorted=False)),
            "torch_abs_us": median_us(
                args.runs, lambda: torch.topk(values.abs(), k, sorted=False)),
            "torch": torch.__version__,
            "checked": checked,
        }
        print(json.dumps(line), flush=True)
        good = good and checked
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
