#!/usr/bin/env python3
"""What each of DistOpt's modes does to the accuracy of mnist_dist.

    mnist_accuracy.py [--program PATH] [--epochs 10] [--seed 0] [--only NAME ...] [--json FILE]

Trains on MNIST (TUTTI_MNIST_DIR) once for each run of the table, and prints one line a run:
evaluation accuracy after the last epoch, what a step sent on average, and the limit it has to keep. Ends with
status 1 if a run falls below its limit. `--json` appends one object a run; `--table` prints the
Markdown table of such a file instead of training.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
from statistics import mean

ROOT = pathlib.Path(__file__).resolve().parent.parent
DGC = ["--momentum-correction", "--warm-up-epochs", "4"]
# Name: ranks, options, and how many percentage points below fp32 are allowed.
RUNS = {
    "fp32": (2, ["fp32"], 0.0),
    "fp16": (2, ["fp16"], 0.1),
    "bf16": (2, ["bf16"], 0.1),
    "partialUpdate": (2, ["partialUpdate"], 0.1),
    "sparseTopK 5 %": (2, ["sparseTopK", "--spars", "0.05"], 0.2),
    "sparseTopK 1 %": (2, ["sparseTopK", "--spars", "0.01"], 0.3),
    "sparseTopK 0.1 %, corrected": (2, ["sparseTopK", "--spars", "0.001", *DGC], 0.5),
    "sparseThreshold": (2, ["sparseThreshold", "--spars", "0.014"], 0.3),
    "fp32, 4 ranks": (4, ["fp32"], 0.0),
    "fp16, 4 ranks": (4, ["fp16"], 0.1),
    "sparseTopK 1 %, 4 ranks": (4, ["sparseTopK", "--spars", "0.01"], 0.3),
}


def train(program, name, epochs, seed):
    ranks, options, allowed = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "result.json"
        subprocess.run([program, "--ranks", str(ranks), "--epochs", str(epochs), "--seed",
                        str(seed), "--json", str(result), "--dist-option", *options],
                       check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in result.read_text().splitlines()]
    last = rows[-1]
    if last["data"] != "mnist":
        sys.exit("mnist_accuracy: no MNIST found; set TUTTI_MNIST_DIR")
    return {"name": name, "ranks": ranks, "options": " ".join(options), "epochs": epochs,
            "seed": seed, "allowed": allowed, "accuracy": last["eval_accuracy"],
            "first_accuracy": rows[0]["eval_accuracy"], "train_loss": last["train_loss"],
            "bytes_per_step": round(mean(row["bytes_per_step"] for row in rows)),
            "density": mean(row["density"] for row in rows),
            "non_finite": sum(row["non_finite"] for row in rows)}


def table(rows):
    """One line a run; several seeds of a run follow each other."""
    print("| run | ranks | seed | accuracy | against fp32 | density | bytes a step |")
    print("|---|---|---|---|---|---|---|")
    full = {(row["ranks"], row["seed"]): row["accuracy"] for row in rows
            if row["options"] == "fp32"}
    good = True
    for row in sorted(rows, key=lambda row: (list(RUNS).index(row["name"]), row["seed"])):
        base = full.get((row["ranks"], row["seed"]))
        points = None if base is None else 100 * (row["accuracy"] - base)
        against = "" if points is None else f"{points:+.2f} points"
        if points is not None and points < -row["allowed"] - 1e-9:
            against += f" (allowed: -{row['allowed']})"
            good = False
        print(f"| `{row['options']}` | {row['ranks']} | {row['seed']} | {row['accuracy']:.4f} | "
              f"{against} | {100 * row['density']:.3g} % | {row['bytes_per_step']:,} |")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=ROOT / "build/release/bin/mnist_dist")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--table", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.table:
        rows = [json.loads(line) for line in arguments.table.read_text().splitlines()]
        return 0 if table(rows) else 1
    rows = []
    for name in arguments.only:
        rows.append(train(arguments.program, name, arguments.epochs, arguments.seed))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        if arguments.json:
            with arguments.json.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    return 0 if table(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
