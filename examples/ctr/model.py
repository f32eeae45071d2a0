"""Wide & deep (Cheng et al. 2016) in NumPy, forward and backward.

    logit = bias + numbers . w + sum of the fields' weights          wide: what to memorise
          + MLP(embeddings of the fields, numbers)                   deep: what to generalise

Weights and embeddings of the fields are rows of tables, which the caller looks up, and to which it
pushes what backward passes return. All else are the parameters of WideAndDeep.
"""

import dataclasses

import numpy as np


class MLP:
    """Layers of rectified linear units, and a linear one. There may be several inputs, which count
    as side by side: the first layer has a matrix for each, so that nobody copies them there."""

    def __init__(self, inputs, widths, random):
        self.parameters, self.layers = {}, len(widths)
        for layer, width in enumerate(widths):
            sizes = inputs if layer == 0 else [widths[layer - 1]]
            limit = np.sqrt(6 / (sum(sizes) + width))  # Glorot and Bengio 2010
            for part, size in enumerate(sizes):
                weight = random.uniform(-limit, limit, (size, width)).astype(np.float32)
                self.parameters[f"deep.{layer}.{part}"] = weight
            self.parameters[f"deep.{layer}.bias"] = np.zeros(width, np.float32)

    def forward(self, *inputs):
        """What the last layer puts out."""
        self._seen = []  # by each layer
        for layer in range(self.layers):
            self._seen.append(inputs)
            x = sum(each @ self.parameters[f"deep.{layer}.{part}"]
                    for part, each in enumerate(inputs))
            x += self.parameters[f"deep.{layer}.bias"]
            if layer + 1 < self.layers:
                np.maximum(x, 0, out=x)
            inputs = (x,)
        return x

    def backward(self, g, memory=None):
        """The gradients of the parameters by their names, in `memory` if there is any, and that of
        the first layer's sums."""
        memory, gradients = memory or {}, {}
        for layer in reversed(range(self.layers)):
            for part, x in enumerate(self._seen[layer]):
                name = f"deep.{layer}.{part}"
                gradients[name] = np.matmul(x.T, g, out=memory.get(name))
            name = f"deep.{layer}.bias"
            gradients[name] = g.sum(axis=0, out=memory.get(name))
            if layer > 0:
                g = g @ self.parameters[f"deep.{layer}.0"].T
                g *= x > 0
        return gradients, g


@dataclasses.dataclass
class Gradients:
    loss: float  # the mean of the examples' losses, not scaled
    wide: np.ndarray  # of each weight that was looked up, (n, fields)
    deep: np.ndarray  # of each embedding that was looked up, (n, fields, dim)
    parameters: dict


class WideAndDeep:
    def __init__(self, fields, numbers, dim, hidden, seed):
        self.mlp = MLP([fields * dim, numbers], [*hidden, 1], np.random.default_rng(seed))
        self.parameters = {"bias": np.zeros(1, np.float32), "wide": np.zeros(numbers, np.float32),
                           **self.mlp.parameters}  # the same arrays

    def forward(self, wide, deep, numbers):
        """The logits (n,) of examples with weights (n, fields), embeddings (n, fields, dim)."""
        linear = wide.sum(axis=1) + numbers @ self.parameters["wide"] + self.parameters["bias"]
        return linear + self.mlp.forward(deep.reshape(len(deep), -1), numbers)[:, 0]

    def gradients(self, wide, deep, numbers, labels, scale=1.0):
        """Those of the mean logistic loss, times `scale`."""
        logits = self.forward(wide, deep, numbers)
        g = (probabilities(logits) - labels) * np.float32(scale / len(labels))
        parameters, sums = self.mlp.backward(g[:, None])
        embedded = sums @ self.parameters["deep.0.0"].T
        parameters.update(bias=g.sum(keepdims=True), wide=numbers.T @ g)
        return Gradients(logistic_loss(logits, labels), np.repeat(g[:, None], wide.shape[1], axis=1),
                         embedded.reshape(deep.shape), parameters)


def probabilities(logits):
    return 0.5 * (1 + np.tanh(0.5 * logits))


def logistic_loss(logits, labels):
    return float(np.mean(np.logaddexp(0, logits) - labels * logits))
