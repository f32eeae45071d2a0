#!/usr/bin/env python3
"""Draws what scale_sim predicts, beside the alpha-beta bound, as docs/scale.svg shows it.

    for hosts in 4 16 64 256; do
      scale_sim --hosts $hosts --largest 67108864 --json $hosts.jsonl
    done
    scale_sim --hosts 1024 --largest 268435456 --json 1024.jsonl
    scripts/plot_scale.py 4.jsonl 16.jsonl 64.jsonl 256.jsonl 1024.jsonl --out docs/scale.svg

Wants matplotlib.
"""
import argparse
import json
from pathlib import Path


def rows_of(files):
    """The rows of all files, by the number of hosts."""
    hosts = {}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            hosts.setdefault(row["hosts"], []).append(row)
    return dict(sorted(hosts.items()))


def draw_sizes(axes, hosts):
    """all_reduce by the size of the data."""
    for number, rows in hosts.items():
        sums = [row for row in rows if row["what"] == "all_reduce"]
        sizes = [row["bytes"] for row in sums]
        line, = axes.loglog(sizes, [row["us"] for row in sums], marker="o", markersize=3,
                            label=f"{number} hosts")
        axes.loglog(sizes, [row["bound_us"] for row in sums], ":", color=line.get_color())
    axes.set(xlabel="bytes", ylabel="us", title="all_reduce (dotted: the bound)")
    axes.legend()


def draw_hosts(axes, hosts):
    """What has no size, by the number of hosts."""
    for what in ("agreement", "start-up", "split", "leaving", "process killed", "host crashed"):
        rows = {number: row for number, all_rows in hosts.items() for row in all_rows
                if row["what"] == what}
        line, = axes.loglog(list(rows), [row["us"] for row in rows.values()], marker="o", markersize=3,
                            label=what)
        axes.loglog(list(rows), [row["bound_us"] for row in rows.values()], ":", color=line.get_color())
    axes.set(xlabel="hosts", ylabel="us", title="the rest (dotted: the bound)")
    axes.legend(loc="center", bbox_to_anchor=(0.5, 0.68), ncols=3, fontsize=8)  # below crashed hosts


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "tutti", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    hosts = rows_of(options.files)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.8), constrained_layout=True)
    draw_sizes(left, hosts)
    draw_hosts(right, hosts)
    figure.savefig(options.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
