"""Tables and parameters of one process in NumPy, with the calls of tutti.ps: a model that trains
alone, as a measure of what servers cost."""

import contextlib

import numpy as np


class Adagrad:
    def __init__(self, lr, eps=1e-10):
        self.lr, self.eps = np.float32(lr), np.float32(eps)

    def __call__(self, values, squares, gradients):
        squares += gradients * gradients
        values -= self.lr * gradients / (np.sqrt(squares) + self.eps)


class Table:
    """Rows of any ids, made when they are first asked for."""

    def __init__(self, dim, rule, low, high, seed):
        self.dim, self.rule, self.low, self.high = dim, rule, low, high
        self.random = np.random.default_rng(seed)
        self.places = {}
        self.rows = np.empty((0, dim), np.float32)
        self.squares = np.zeros((0, dim), np.float32)
        self.batch = []

    def _places_of(self, ids):
        places = [self.places.setdefault(id, len(self.places)) for id in ids.tolist()]
        if len(self.places) > len(self.rows):
            more = 2 * len(self.places) - len(self.rows)
            fresh = self.random.uniform(self.low, self.high, (more, self.dim))
            self.rows = np.concatenate([self.rows, fresh.astype(np.float32)])
            self.squares = np.concatenate([self.squares, np.zeros((more, self.dim), np.float32)])
        return np.array(places, np.int64)

    def lookup(self, ids):
        distinct, place = np.unique(ids, return_inverse=True)
        places = self._places_of(distinct)
        return self.rows[places[place.reshape(ids.shape)]]

    def push(self, ids, gradients):
        self.batch.append((ids.ravel(), gradients.reshape(-1, self.dim)))

    def step(self):
        ids, gradients = (np.concatenate(part) for part in zip(*self.batch))
        self.batch.clear()
        order = np.argsort(ids, kind="stable")
        distinct, first = np.unique(ids[order], return_index=True)
        sums = np.add.reduceat(gradients[order], first)
        places = self._places_of(distinct)
        values, squares = self.rows[places], self.squares[places]
        self.rule(values, squares, sums)
        self.rows[places], self.squares[places] = values, squares


class Dense:
    def __init__(self, parameters, rule):
        self.parameters, self.rule = parameters, rule
        self.squares = {name: np.zeros_like(value) for name, value in parameters.items()}
        self.batch = {}

    def pull(self):
        pass

    def push(self, gradients):
        for name, gradient in gradients.items():
            self.batch[name] = self.batch.get(name, 0) + gradient

    def step(self):
        for name, gradient in self.batch.items():
            self.rule(self.parameters[name], self.squares[name], gradient)
        self.batch.clear()


class Alone(contextlib.AbstractContextManager):
    """In the place of a fleet, one that has this process alone."""

    is_server, worker_index, worker_num = False, 0, 1

    def __init__(self, parts):
        self.parts = parts

    def __exit__(self, *_):
        return None

    def step(self):
        for part in self.parts:
            part.step()

    def flush(self):
        pass

    def barrier(self):
        pass

    def stats(self):
        return {}
