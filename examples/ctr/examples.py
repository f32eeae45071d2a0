"""Examples of clicks as Criteo publishes them: 13 numbers and 26 categories each, and a label."""

import dataclasses

import numpy as np

NUMBERS = 13
CATEGORIES = 26
# The category of a field is the low half of an id; above are the field and whether it was empty.
_FIELDS = np.arange(CATEGORIES, dtype=np.int64) << 33
_EMPTY = np.int64(1) << 32


@dataclasses.dataclass
class Examples:
    """What a model is shown of some examples."""

    labels: np.ndarray  # float32 (n,): 1 for a click
    numbers: np.ndarray  # float32 (n, 13), each from about 0 to about 2
    ids: np.ndarray  # int64 (n, 26): of embeddings; no two fields share one

    def __len__(self):
        return len(self.labels)


def encode(labels, counts, categories, empty):
    """Examples of raw columns: `counts` are float64 (n, 13), NaN where there is none; `categories`
    uint32 (n, 26), and `empty` tells which of them are not there."""
    logs = np.log1p(np.maximum(np.nan_to_num(counts), 0.0)) / 4
    ids = _FIELDS | np.where(empty, _EMPTY, categories.astype(np.int64))
    return Examples(labels.astype(np.float32), logs.astype(np.float32), ids)


def join(parts):
    """Several Examples, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Examples(*(np.concatenate([getattr(part, field.name) for part in parts])
                      for field in dataclasses.fields(Examples)))


def batches_of(source, first, rounds, batch_size, worker, workers, accumulate=1):
    """The batches of one worker: of every `workers * accumulate` batches from example `first` on,
    which are a round, `accumulate` that follow each other."""
    for number in range(rounds):
        for part in range(accumulate):
            batch = (number * workers + worker) * accumulate + part
            yield source.read(first + batch * batch_size, batch_size)
