"""What the program prints, writes and draws: SINGA's lines, a progress bar, JSON, curves."""

import contextlib
import json
import math
import os
import stat
import sys
import time

import tutti
from tutti.files import OutputFile

PHASES = ("pack", "encode", "exchange", "decode", "update", "overlap")


def stdout_is_terminal():
    if not sys.stdout.isatty() or tutti.launched_by() != "mpiexec":
        return sys.stdout.isatty()
    # Open MPI gives each rank a pseudo-terminal and copies what it reads there to its own stdout.
    try:
        descriptor = os.open(f"/proc/{os.getppid()}/fd/1", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.isatty(descriptor)
    finally:
        os.close(descriptor)


def launchers_progress_fd():
    """The pipe from which `tutti run` reads what the rank says of its progress; -1 if there is none."""
    number = int(os.environ.get("TUTTI_PROGRESS_FD", -1))
    try:
        return number if stat.S_ISFIFO(os.fstat(number).st_mode) else -1
    except (OSError, ValueError):
        return -1


class Report:
    """The voice of rank 0; on the other ranks it is silent."""

    def __init__(self, speaks, path):
        self.speaks = speaks
        self.shows_progress = speaks and stdout_is_terminal()
        self.launcher = launchers_progress_fd() if speaks else -1
        self.drawn = 0.0
        self.file = None
        if speaks and path:
            self.file = OutputFile(path)
            self.file.commit()  # so that it can be read as it grows

    def line(self, text):
        if self.speaks:
            print(text, flush=True)

    def progress(self, done, batches, images_per_second):
        if (self.launcher < 0 and not self.shows_progress) or time.monotonic() - self.drawn < 0.2:
            return
        self.drawn = time.monotonic()
        if self.launcher >= 0:  # tutti run draws its own line
            with contextlib.suppress(OSError):
                os.write(self.launcher, f"{done}/{batches}, {images_per_second:.0f} images/s\n".encode())
        if self.shows_progress:
            bar = "=" * (40 * done // batches)
            print(f"\r[{bar:<40}] {done}/{batches}  {images_per_second:.0f} images/s ", end="",
                  flush=True)

    def training_ended(self, result):
        if self.shows_progress:
            print("\r\033[K", end="")
        self.line(f"Training loss = {result['train_loss']:f}, "
                  f"training accuracy = {result['train_accuracy']:f}")

    def epoch_ended(self, result):
        self.line(f"Evaluation accuracy = {result['eval_accuracy']:f}, "
                  f"Elapsed Time = {result['seconds']:f}s")
        if self.file:
            finite = {key: None if isinstance(value, float) and not math.isfinite(value) else value
                      for key, value in result.items()}  # JSON has no NaN and no infinity
            self.file.write(f"{json.dumps(finite)}\n".encode())


def step_fields(totals, steps):
    """What a JSON object says of an epoch's steps on rank 0; `totals` of DistOpt.statistics()."""
    return dict(bytes_per_step=int(totals["bytes_sent"]) // steps,
                bytes_between_per_step=int(totals["bytes_between"]) // steps,
                density=totals["density"] / steps, non_finite=int(totals["non_finite"]),
                seconds_by_phase={phase: totals[f"{phase}_seconds"] for phase in PHASES})


def plot(image, files):
    """Draws loss and accuracy over the epochs of one or several JSON files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (loss, accuracy) = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for path in files:
        with open(path) as lines:
            epochs = [json.loads(line) for line in lines]
        label = f"{epochs[0]['dist_option']}, {epochs[0]['world_size']} ranks"
        x = [e["epoch"] + 1 for e in epochs]
        loss.plot(x, [e["train_loss"] for e in epochs], marker="o", label=label)
        accuracy.plot(x, [e["eval_accuracy"] for e in epochs], marker="o", label=label)
    loss.set(xlabel="epoch", ylabel="training loss, all batches", yscale="log")
    accuracy.set(xlabel="epoch", ylabel="evaluation accuracy")
    accuracy.legend()
    with OutputFile(image) as output:
        figure.savefig(output.file, format=os.path.splitext(image)[1][1:] or None)
        output.commit()
