"""What the program prints, writes and draws: SINGA's lines, a progress bar, JSON, curves."""

import json
import math
import os

from tutti.files import OutputFile
from tutti.progress import Progress

PHASES = ("pack", "encode", "exchange", "decode", "update", "overlap")


class Report:
    """The voice of rank 0; on the other ranks it is silent."""

    def __init__(self, speaks, path):
        self.speaks = speaks
        self.bar = Progress("images") if speaks else None
        self.file = None
        if speaks and path:
            self.file = OutputFile(path)
            self.file.commit()  # so that it can be read as it grows

    def line(self, text):
        if self.speaks:
            print(text, flush=True)

    def progress(self, done, batches, images_per_second):
        if self.speaks:
            self.bar.show(done, batches, images_per_second)

    def training_ended(self, result):
        if self.speaks:
            self.bar.clear()
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
