#!/usr/bin/env python3
"""What old gradients cost the example of click-through rates: one worker trains in async mode, and
pushes each gradient so many pushes after it was computed. The same examples in the same order, to
the bit in each run, whatever else the machine does.

    ctr_staleness.py --age 4                        # of dense gradients and those of rows
    ctr_staleness.py --age 4 --from 100             # the first 100 are new
    ctr_staleness.py --dense-age 8                  # of dense ones alone
    ctr_staleness.py --merge 4 --rule mean          # pushes of four batches
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


class Pushes:
    """What has been computed and is not yet pushed."""

    def __init__(self, training, arguments):
        self.training, self.merge, self.rule = training, arguments.merge, arguments.rule
        self.rows, self.dense = collections.deque(), collections.deque()
        self.first_old = arguments.first_old
        self.ages = (arguments.age if arguments.rows_age is None else arguments.rows_age,
                     arguments.age if arguments.dense_age is None else arguments.dense_age)

    def add(self, number, ids, found):
        self.rows.append((ids, found.wide[..., None], found.deep))
        self.dense.append(found.parameters)
        rows_age, dense_age = self.ages if number >= self.first_old else (0, 0)
        scale = np.float32(1 if self.rule == "sum" else 1 / self.merge)
        while len(self.rows) >= rows_age + self.merge or len(self.dense) >= dense_age + self.merge:
            for _ in range(self.merge if len(self.rows) >= rows_age + self.merge else 0):
                ids, wide, deep = self.rows.popleft()
                self.training.wide.push(ids, wide * scale)
                self.training.deep.push(ids, deep * scale)
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
    add("--merge", type=int, default=1, metavar="N", help="batches in a push (1)")
    add("--rule", choices=("mean", "sum"), default="mean", help="how they are merged (mean)")
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
