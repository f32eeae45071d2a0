"""Workers of the loader that fail, and what they leave behind: nothing."""

import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy
import pytest

import tutti
from tutti import data, distributed

SECONDS = 15  # in which processes must be gone, on a busy machine


class Samples:
    """Numbers, of which one does something else."""

    def __init__(self, action, at=30):
        self.action, self.at = action, at

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if index == self.at:
            self.action()
        return numpy.full(3, index)


class Odd(Exception):
    """Cannot be made from its text."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def raising():
    raise KeyError("sample is damaged")


def raising_what_cannot_be_pickled():
    raise Odd("one", "two")


def exiting():
    sys.exit("enough")


def dying():
    os._exit(7)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def endless():
    while True:
        time.sleep(1)


def closing():
    os.closerange(3, 100)


def outcome(loader):
    """What was read before the WorkerError, and the error."""
    read = 0
    with pytest.raises(tutti.WorkerError) as error:
        for _ in loader:
            read += 1
    assert not multiprocessing.active_children()
    return read, error.value


FAILURES = [
    (raising, "failed at samples 30, 31, 32:\nTrace.*in raising\n.*KeyError: 'sample", KeyError),
    (raising_what_cannot_be_pickled, "failed at .*in raising_what.*Odd: one and two", None),
    (exiting, "failed at .*SystemExit: enough", SystemExit),
    (dying, "ended with exit code 7 at samples 30, 31, 32", None),
    (killed, "was killed by SIGKILL at samples 30, 31, 32", None),
    (stopped, "has not made its batch of samples 30, 31, 32 within 8 s", None),
    (closing, "samples 30, 31, 32", None),
]


@pytest.mark.parametrize("action, reason, cause, start_method", [
    *[(*failure, "fork") for failure in FAILURES],
    *[(*failure, "spawn") for failure in FAILURES if failure[0] in (raising, killed)]])
def test_a_worker_that_fails_is_named(action, reason, cause, start_method):
    dataset = Samples(action)
    read, error = outcome(data.DataLoader(
        dataset, data.SequentialSampler(dataset, 3), num_workers=2,
        timeout=8 if action is stopped else 20, start_method=start_method))
    text = str(error)
    assert f"data worker {error.worker} of 2 (pid " in text
    assert re.search(reason, text, re.DOTALL), text
    assert type(error.__cause__) is (cause or type(None))
    assert read == 10  # what was made before comes before


def test_what_others_made_before_a_worker_died_comes_before():
    dataset = Samples(dying, 3)
    batches = iter(data.DataLoader(dataset, data.SequentialSampler(dataset, 1), num_workers=2))
    read = [next(batches)]
    end = time.monotonic() + SECONDS
    while len(multiprocessing.active_children()) == 2:
        assert time.monotonic() < end
        time.sleep(0.001)
    with pytest.raises(tutti.WorkerError, match="exit code 7 at samples 3"):
        read.extend(batches)
    assert [int(batch[0, 0]) for batch in read] == [0, 1, 2]


def test_a_batch_that_cannot_be_pickled_is_an_error_of_its_worker():
    _, error = outcome(data.DataLoader([1, 2], [[0, 1]], num_workers=1,
                                          collator=lambda samples: (lambda: samples)))
    assert "Can't pickle" in str(error)


def test_after_a_failure_the_loader_can_be_read_again():
    dataset = Samples(killed)
    loader = data.DataLoader(dataset, data.SequentialSampler(dataset, 6), num_workers=2)
    outcome(loader)
    dataset.at = None
    assert [int(batch[0, 0]) for batch in loader] == list(range(0, 60, 6))


def test_an_iteration_that_is_dropped_leaves_nothing():
    dataset = Samples(endless)
    loader = data.DataLoader(dataset, data.SequentialSampler(dataset, 10), num_workers=3)
    begin = time.monotonic()
    for _ in loader:
        break
    assert not multiprocessing.active_children()
    assert time.monotonic() - begin < SECONDS


class Places:
    """Who asks for them; what is no worker's to ask for ends the iteration."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        if index == 1:
            distributed.group_barrier()
        return numpy.array([distributed.get_rank(), distributed.get_world_size()])


def places_seen(start_method):
    distributed.get_rank()
    loader = data.DataLoader(Places(), [[0]], num_workers=1, start_method=start_method)
    seen = [batch.tolist() for batch in loader]
    if start_method == "spawn":
        with pytest.raises(tutti.WorkerError, match="works for a rank, and is none itself"):
            list(data.DataLoader(Places(), [[1]], num_workers=1, start_method=start_method))
    return seen


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_worker_knows_the_place_of_its_rank(start_method):
    results = distributed.launcher(places_seen, n_gpus=2)(start_method)
    assert results == [[[[rank, 2]]] for rank in range(2)]


SCRIPT = """
import os, sys, time
import numpy
from tutti import data

class Samples:
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        os.write(1, b"%d\\n" % os.getpid())
        time.sleep(float(sys.argv[1]))
        return numpy.full(50_000, index)

if __name__ == "__main__":
    os.write(1, b"%d\\n" % os.getpid())
    one, other = (iter(data.DataLoader(Samples(), data.SequentialSampler(Samples(), 2),
                                       num_workers=2, start_method=sys.argv[2])) for _ in range(2))
    kept = [next(one), next(other)] if sys.argv[1] == "0" else []
    for batch in one:
        next(other)
"""


def ended(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("seconds, start_method", [("0", "fork"), ("1000", "fork"), ("0", "spawn")])
def test_nothing_outlives_the_program(how, seconds, start_method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, script, seconds, start_method], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              start_new_session=True)
    try:
        pids = {int(parent.stdout.readline())}
        while len(pids) < (5 if seconds == "0" else 3):
            pids.add(int(parent.stdout.readline()))
        begin = time.monotonic()
        if how == signal.SIGINT:
            os.killpg(parent.pid, how)  # as a terminal does
        else:
            os.kill(parent.pid, how)
        _, errors = parent.communicate(timeout=30)
        while not all(map(ended, pids)):
            assert time.monotonic() - begin < SECONDS, pids
            time.sleep(0.02)
        assert parent.returncode in (-how, 1)
        assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT), errors
        assert errors.count("Traceback") == (how == signal.SIGINT), errors
    finally:
        for pid in [parent.pid, *pids]:
            if not ended(pid):
                os.kill(pid, signal.SIGKILL)
        parent.wait()
