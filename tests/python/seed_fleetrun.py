"""train.py of the document about fleetrun: imports, model and data alone are others.

    python seed_fleetrun.py
    tutti run --gpus=0,1 seed_fleetrun.py
"""

import time

import numpy as np

import seed_mnist

from tutti import data, opt


class MLP:
    """Two layers of 128 with tanh, one of 10, and the cross-entropy."""

    def __init__(self):
        rng = np.random.default_rng(0)
        sizes = (784, 128, 128, 10)
        self.weights = [rng.normal(0, n**-0.5, (n, m)).astype(np.float32)
                        for n, m in zip(sizes, sizes[1:])]
        self.biases = [np.zeros(m, np.float32) for m in sizes[1:]]

    def forward(self, x, y):
        """Loss and accuracy of a batch."""
        self.inputs = [x.reshape(len(x), 784)]
        for weight, bias in zip(self.weights[:-1], self.biases):
            self.inputs.append(np.tanh(self.inputs[-1] @ weight + bias))
        logits = self.inputs[-1] @ self.weights[-1] + self.biases[-1]
        exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
        self.d_out = exponents / exponents.sum(axis=1, keepdims=True)
        at = np.arange(len(y)), y
        loss = -np.log(self.d_out[at]).mean()
        self.d_out[at] -= 1
        self.d_out /= len(y)
        return loss, (logits.argmax(axis=1) == y).mean()

    def backward(self):
        """Yields (param, grad), the last layer first."""
        d_out = self.d_out
        for layer in (2, 1, 0):
            yield self.biases[layer], d_out.sum(axis=0)
            yield self.weights[layer], self.inputs[layer].T @ d_out
            if layer:
                d_out = d_out @ self.weights[layer].T * (1 - self.inputs[layer] ** 2)


def normalised(sample):
    image, label = sample
    return image.astype(np.float32) / 128 - 1, label


if __name__ == "__main__":
    images, labels, _, _ = seed_mnist.load_dataset()
    train_data = data.ArrayDataset(images, labels)
    model = MLP()
    optimizer = opt.DistOpt(opt.Adam(lr=0.01))
    train_dataloader = data.DataLoader(train_data,
                                       data.RandomSampler(train_data, 64, drop_last=True),
                                       transform=normalised, num_workers=1)

    epoch = 10
    for i in range(epoch):
        total_time = 0
        step = 0
        for x, y in train_dataloader:
            step += 1
            start_time = time.time()
            loss_val, acc_val = model.forward(x, y)
            optimizer(model.backward())
            if step % 4 == 0:
                end_time = time.time()
                total_time += (end_time - start_time)
                print(
                        "epoch: %d, step:%d, train_loss: %f, total time cost = %f, speed: %f"
                    % (i, step, loss_val, total_time,
                      1 / (end_time - start_time) ))
