#!/usr/bin/env python3
"""What old gradients cost the example of click-through rates: one worker trains in async mode, and
pushes each gradient so many pushes after it was computed. The same examples in the same order, to
the bit in each run, whatever else the machine does.

    ctr_staleness.py --age 4                        # of dense gradients and those of rows
    ctr_staleness.py --age 4 --from 100             # the first 100 are new
    ctr_staleness.py --age 4 --until 100            # the first 100 alone are old
    ctr_staleness.py --dense-age 8                  # of dense ones alone
    ctr_staleness.py --merge 4 --rule mean          # pushes of four batches; sum, mean-of-seen
    ctr_staleness.py --batch-size 1024              # sync mode of two workers

Prints the AUC after each epoch, and after 100 pushes how many units of the hidden layers still put
out anything for the batch.
"""

import argparse
import collections
import os
import pathlib
import sys

os.environ["OPENBLAS_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples" / "ctr"), str(ROOT / "build" / "release" / "python")]

import ctr_dist
import numpy as np
from examples import batches_of
from made_up import MadeUpClicks

COUNTED_AT = 100  # pushes


def times_seen(batches):
    """For each id of each batch, how many of the batches have it."""
    ids, counts = np.unique(np.concatenate([np.unique(batch) for batch in batches]), return_counts=True)
    return [counts[np.searchsorted(ids, batch)] for batch in batches]


class Pushes:
    """What has been computed and is not yet pushed."""

    def __init__(self, training, arguments):
        self.training, self.merge, self.rule = training, arguments.merge, arguments.rule
        self.rows, self.dense = collections.deque(), collections.deque()
        self.first_old, self.first_new = arguments.first_old, arguments.first_new
        self.ages = (arguments.age if arguments.rows_age is None else arguments.rows_age,
                     arguments.age if arguments.dense_age is None else arguments.dense_age)

    def add(self, number, ids, found):
        self.rows.append((ids, found.wide[..., None], found.deep))
        self.dense.append(found.parameters)
        old = self.first_old <= number and (self.first_new is None or number + 1 < self.first_new)
        rows_age, dense_age = self.ages if old else (0, 0)
        scale = np.float32(1 if self.rule == "sum" else 1 / self.merge)
        while len(self.rows) >= rows_age + self.merge or len(self.dense) >= dense_age + self.merge:
            if len(self.rows) >= rows_age + self.merge:
                merged = [self.rows.popleft() for _ in range(self.merge)]
                scales = [scale] * self.merge
                if self.rule == "mean-of-seen":
                    seen = times_seen([ids for ids, _, _ in merged])
                    scales = [(1 / times).astype(np.float32)[..., None] for times in seen]
                for (ids, wide, deep), scale_of_rows in zip(merged, scales):
                    self.training.wide.push(ids, wide * scale_of_rows)
                    self.training.deep.push(ids, deep * scale_of_rows)
            for _ in range(self.merge if len(self.dense) >= dense_age + self.merge else 0):
                self.training.dense.push({name: value * scale
                                          for name, value in self.dense.popleft().items()})
            self.training.fleet.step()
            self.training.fleet.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--age", type=int, default=0, metavar="N", help="pushes that a gradient waits for (0)")
    add("--dense-age", type=int, metavar="N", help="of dense gradients (--age)")
    add("--rows-age", type=int, metavar="N", help="of those of rows (--age)")
    add("--from", dest="first_old", type=int, default=0, metavar="N", help="from this batch on (0)")
    add("--until", dest="first_new", type=int, metavar="N", help="up to this batch, which is new (all)")
    add("--merge", type=int, default=1, metavar="N", help="batches in a push (1)")
    add("--rule", choices=("mean", "sum", "mean-of-seen"), default="mean",
        help="how they are merged; mean-of-seen: of rows the mean over the batches that have the id (mean)")
    arguments, words = parser.parse_known_args()
    options = ctr_dist.parse_options(["--mode", "async", "--servers", "thread", *words])
    training = ctr_dist.Training(options)
    source = MadeUpClicks(options.seed)
    examples = options.examples or ctr_dist.MADE_UP_EXAMPLES
    fleet, _ = training.start()
    with fleet:
        pushes, number, alive = Pushes(training, arguments), 0, []
        for epoch in range(options.epochs):
            rounds = examples // options.batch_size
            first = options.held_out + epoch * examples
            for batch in batches_of(source, first, rounds, options.batch_size, 0, 1):
                training.dense.pull()
                found = training.model.gradients(*training.look_up(batch), batch.numbers, batch.labels)
                pushes.add(number, batch.ids, found)
                number += 1
                if number == COUNTED_AT:
                    seen = training.model.mlp._seen[1:]
                    alive = [int((outputs > 0).any(axis=0).sum()) for (outputs,) in seen]
            auc, _ = training.evaluate(source)
            print(f"epoch {epoch}: AUC {auc:.4f}, alive after {COUNTED_AT}: {alive}", flush=True)


if __name__ == "__main__":
    main()
