#!/usr/bin/env python3
"""Draws a part of a step of a timeline as an SVG.

How docs/timeline.svg was made:
    TUTTI_TIMELINE=run.json mnist_dist --ranks 2 --epochs 1 --dist-option fp16
    scripts/draw_timeline.py run.json docs/timeline.svg --step 302 --begin 3.9 --end 5.05
"""

import argparse
import json
from collections import defaultdict
from html import escape

COLOURS = {
    "backward": "#2f5d8a", "encode": "#b08800", "decode": "#b08800", "update": "#3f7f4f",
    "exchange": "#57436e", "all_reduce": "#8957e5", "wait": "#da3633", "step": "#30363d",
    "pack": "#8a6d3b",
}
OTHER = "#5c6370"
WIDTH, LEFT, RIGHT, TOP, ROW, GAP = 980, 120, 20, 64, 22, 16


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("image")
    parser.add_argument("--step", type=int, default=0, help="its number, of rank 0's")
    parser.add_argument("--begin", type=float, default=0.0, help="milliseconds after its start")
    parser.add_argument("--end", type=float, default=10.0)
    return parser.parse_args()


def depths(slices):
    """Gives each slice of a lane its depth: how many others it lies in."""
    open_ends = []
    for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        while open_ends and open_ends[-1] <= event["ts"] + 1e-9:
            open_ends.pop()
        event["depth"] = len(open_ends)
        open_ends.append(event["ts"] + event["dur"])
    return max((e["depth"] for e in slices), default=0) + 1


def main():
    arguments = parse_arguments()
    with open(arguments.run) as file:
        events = json.load(file)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    steps = sorted(e["ts"] for e in slices if e["name"] == "step" and e["pid"] == 0)
    begin = steps[arguments.step] + 1000 * arguments.begin
    end = steps[arguments.step] + 1000 * arguments.end
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)

    lanes = defaultdict(list)
    for event in slices:
        if event["ts"] + event["dur"] > begin and event["ts"] < end:
            lanes[event["pid"], event["tid"]].append(event)
    order = sorted(lanes, key=lambda lane: (lane[0], names.get(lane, "") != "main", lane[1]))
    body, y, rank = [], TOP, None
    for lane in order:
        if rank not in (None, lane[0]):
            y += GAP
        rank = lane[0]
        rows = depths(lanes[lane])
        body.append(f'<text x="14" y="{y + 15}">rank {lane[0]} {escape(names.get(lane, ""))}</text>')
        for event in lanes[lane]:
            left = max(event["ts"], begin)
            right = min(event["ts"] + event["dur"], end)
            x, width = LEFT + (left - begin) * scale, max((right - left) * scale, 0.6)
            top = y + event["depth"] * ROW
            colour = COLOURS.get(event["name"], OTHER)
            body.append(f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 2}" '
                        f'rx="2" fill="{colour}"/>')
            label = event["name"].replace("_", " ")
            if width > 7.2 * len(label) + 6:
                body.append(f'<text x="{x + 4:.1f}" y="{top + 15}" font-size="12">'
                            f'{escape(label)}</text>')
        y += rows * ROW
    height = y + 34
    marks = []
    interval = next(i for i in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
                    if i * scale > 60)
    for number in range(int((end - begin) / interval) + 1):
        x = LEFT + number * interval * scale
        marks.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{y + 4}" '
                     f'stroke="#30363d"/><text x="{x:.1f}" y="{y + 20}" font-size="12" '
                     f'text-anchor="middle">{number * interval} us</text>')
    with open(arguments.image, "w") as file:
        file.write(f'''<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" \
viewBox="0 0 {WIDTH} {height}" role="img" aria-label="The end of a step, on a timeline">
<rect width="{WIDTH}" height="{height}" rx="8" fill="#16181d"/>
<circle cx="20" cy="18" r="6" fill="#ff5f57"/><circle cx="40" cy="18" r="6" fill="#febc2e"/>\
<circle cx="60" cy="18" r="6" fill="#28c840"/>
<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13" fill="#d7dae0">
<text x="20" y="46" fill="#7ee787">$ TUTTI_TIMELINE=run.json mnist_dist --ranks 2 --dist-option fp16</text>
{chr(10).join(marks + body)}
</g>
</svg>
''')


if __name__ == "__main__":
    main()
