"""What the documents' scripts for parameter servers leave out: a network, and data."""

import numpy as np

from tutti import ps

SLOTS, DIM, IDS = 3, 4, 50


class Network:
    """Predicts clicks: rows of SLOTS ids one after the other, a layer of 8 with tanh, one number."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.embedding = ps.Embedding("emb", DIM, dict_size=IDS)
        self.weight = rng.normal(0, 0.3, (SLOTS * DIM, 8)).astype(np.float32)
        self.out = rng.normal(0, 0.3, (8, 1)).astype(np.float32)
        self.bias = np.zeros(1, np.float32)

    def parameters(self):
        return {"weight": self.weight, "out": self.out, "bias": self.bias}

    def forward(self, ids, clicked):
        """The loss of a batch."""
        self.ids = ids
        self.rows = self.embedding.lookup(ids).reshape(len(ids), -1)
        self.hidden = np.tanh(self.rows @ self.weight)
        p = 1 / (1 + np.exp(-(self.hidden @ self.out + self.bias)[:, 0]))
        self.d = ((p - clicked) / len(ids)).astype(np.float32)[:, None]
        return float(-np.mean(np.log(np.where(clicked, p, 1 - p) + 1e-7)))

    def backward(self):
        """Pushes the gradients of the rows, and yields (param, grad)."""
        yield self.bias, self.d.sum(axis=0)
        yield self.out, self.hidden.T @ self.d
        d_hidden = self.d @ self.out.T * (1 - self.hidden**2)
        yield self.weight, self.rows.T @ d_hidden
        self.embedding.push(self.ids, (d_hidden @ self.weight.T).reshape(*self.ids.shape, DIM))


def reader(worker, batches, batch_size=32):
    """Batches of (ids, clicked)."""
    rng = np.random.default_rng(worker)
    for _ in range(batches):
        ids = rng.integers(0, IDS, (batch_size, SLOTS))
        yield ids, ids[:, 0] % 10 < 4
