"""The example of click-through rates: how long its workers wait for worker 0 at once."""

import pathlib
import sys
import types

import numpy
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples" / "ctr"))

import ctr_dist
from options import parse_options

from report import Report


class Training(ctr_dist.Training):
    """Notes what a worker of two does, and calls no servers."""

    def __init__(self, worker, *words):
        self.calls = []
        self.options = parse_options(words)
        self.fleet = types.SimpleNamespace(worker_index=worker, worker_num=2,
                                           barrier=lambda: self.calls.append("barrier"),
                                           flush=lambda: self.calls.append("flush"))
        self.dense = types.SimpleNamespace(pull=lambda: None)
        self.model = types.SimpleNamespace(forward=lambda numbers: numpy.zeros(len(numbers)))

    def train_step(self, batches):
        next(batches)
        return 1.0

    def look_up(self, batch):
        return ()

    def read(self, first, count):
        """As a source of examples."""
        self.calls.append((first, count))
        return types.SimpleNamespace(numbers=numpy.zeros(count), labels=numpy.arange(count) % 2)


@pytest.mark.parametrize("worker", [0, 1])
def test_who_waits_for_worker_0_waits_for_one_step(worker):
    """Then it is late after a step that is as long as the deadline, not after all of them."""
    training = Training(worker, "--batch-size", "4")
    loss, _ = training.train_epoch(training, 100, rounds=4, alone_rounds=2, report=Report(False, None))
    alone_steps = [call for first in (100, 104, 108, 112) for call in ((first, 4), "barrier")]
    together = [(116 + 4 * worker, 4), (124 + 4 * worker, 4), "barrier", "flush"]
    assert training.calls == (["barrier"] * 4 if worker else alone_steps) + together
    assert loss == 1.0


@pytest.mark.parametrize("worker", [0, 1])
def test_who_waits_for_the_evaluation_waits_for_a_part_of_it(worker):
    training = Training(worker, "--held-out", "5000")
    found = training.evaluate(training)
    parts = [(0, 2048), (2048, 2048), (4096, 904)]
    if worker == 0:
        assert training.calls == [call for part in parts for call in (part, "barrier")]
        assert found[0] == pytest.approx(0.5)
    else:
        assert training.calls == ["barrier"] * 3 and found is None
