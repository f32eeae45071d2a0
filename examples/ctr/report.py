"""What worker 0 prints and writes; the others are silent."""

import json
import math

from tutti.files import OutputFile
from tutti.progress import Progress


class Report:
    def __init__(self, speaks, path):
        self.speaks = speaks
        self.bar = Progress("examples") if speaks else None
        self.file = None
        if speaks and path:
            self.file = OutputFile(path)
            self.file.commit()  # so that it can be read as it grows

    def line(self, text):
        if self.speaks:
            print(text, flush=True)

    def progress(self, done, rounds, examples_per_second):
        if self.speaks:
            self.bar.show(done, rounds, examples_per_second)

    def epoch_ended(self, result):
        if not self.speaks:
            return
        self.bar.clear()
        self.line(f"Training loss = {result['train_loss']:f}, "
                  f"{result['examples_per_second']:.0f} examples/s")
        self.line(f"Evaluation AUC = {result['auc']:f}, loss = {result['eval_loss']:f}, "
                  f"Elapsed Time = {result['seconds']:f}s")
        if self.file:
            finite = {key: None if isinstance(value, float) and not math.isfinite(value) else value
                      for key, value in result.items()}  # JSON has no NaN
            self.file.write(f"{json.dumps(finite)}\n".encode())
