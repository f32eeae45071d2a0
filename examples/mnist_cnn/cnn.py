"""The CNN of SINGA's distributed MNIST example in NumPy, forward and backward.

conv 20@5x5, ReLU, pool 2x2, conv 50@5x5, ReLU, pool 2x2, linear 500, ReLU, linear 10, and softmax
cross-entropy averaged over the batch. Images are stored channels last.
"""

import numpy as np
from splitmix import Random

KERNEL = 5


def initial_weights(rng, fan_in, outputs):
    """Uniform with He's variance 2 / fan_in; drawn output by output, as in the C++ program."""
    limit = np.sqrt(6.0 / fan_in)
    return np.ascontiguousarray(rng.uniform(-limit, limit, (outputs, fan_in)).T)


def patches_of(images):
    """im2col: every 5x5 patch of images [n, h, w, c] as a row: [n * (h-4) * (w-4), 25 * c]."""
    n, height, width, channels = images.shape
    rows, columns = height - KERNEL + 1, width - KERNEL + 1
    windows = np.lib.stride_tricks.sliding_window_view(images, (KERNEL, KERNEL), axis=(1, 2))
    windows = windows.transpose(0, 1, 2, 4, 5, 3)  # the channels behind the pixels of a patch
    return windows.reshape(n * rows * columns, KERNEL * KERNEL * channels)


class ConvBlock:
    """5x5 convolution without padding, ReLU, 2x2 max-pooling."""

    def __init__(self, rng, in_channels, out_channels):
        fan_in = KERNEL * KERNEL * in_channels
        self.weight = initial_weights(rng, fan_in, out_channels)
        self.bias = np.zeros(out_channels, np.float32)

    def forward(self, images):
        n, height, width, _ = images.shape
        self.shape = images.shape
        self.patches = patches_of(images)
        conv = (self.patches @ self.weight).reshape(n, height - 4, width - 4, -1)
        # The four corners of each pooling window, side by side.
        corners = [conv[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        pooled = np.maximum(np.maximum(corners[0], corners[1]),
                            np.maximum(corners[2], corners[3]))
        # Where several are the largest, as on an even background, the first has won.
        self.winners, decided = [], np.zeros(pooled.shape, bool)
        for corner in corners:
            self.winners.append((corner == pooled) > decided)
            decided |= self.winners[-1]
        pooled += self.bias
        np.maximum(pooled, 0, out=pooled)
        self.alive = pooled > 0
        return pooled

    def backward(self, d_pooled):
        """Remembers the gradient of the convolution; gives those of weight and bias."""
        n, height, width, _ = self.shape
        d_pooled = d_pooled * self.alive
        d_conv = np.empty((n, height - 4, width - 4, self.bias.size), np.float32)
        for at, winner in enumerate(self.winners):
            np.multiply(d_pooled, winner, out=d_conv[:, at // 2 :: 2, at % 2 :: 2])
        self.d_conv = d_conv.reshape(-1, self.bias.size)
        return self.patches.T @ self.d_conv, d_pooled.sum(axis=(0, 1, 2))

    def backward_images(self):
        """The gradient of the images, after backward(): each place in the kernel adds its share."""
        n, height, width, channels = self.shape
        rows, columns = height - KERNEL + 1, width - KERNEL + 1
        weight = self.weight.reshape(KERNEL, KERNEL, channels, -1)
        d_images = np.zeros(self.shape, np.float32)
        for i in range(KERNEL):
            for j in range(KERNEL):
                share = (self.d_conv @ weight[i, j].T).reshape(n, rows, columns, channels)
                d_images[:, i : i + rows, j : j + columns] += share
        return d_images


class Linear:
    def __init__(self, rng, inputs, outputs):
        self.weight = initial_weights(rng, inputs, outputs)
        self.bias = np.zeros(outputs, np.float32)

    def forward(self, x):
        self.x = x
        return x @ self.weight + self.bias

    def backward(self, d_out):
        return self.x.T @ d_out, d_out.sum(axis=0)


class CNN:
    def __init__(self, seed=0):
        rng = Random(seed)
        self.conv1 = ConvBlock(rng, 1, 20)
        self.conv2 = ConvBlock(rng, 20, 50)
        self.linear1 = Linear(rng, 4 * 4 * 50, 500)
        self.linear2 = Linear(rng, 500, 10)
        self.layers = {"conv1": self.conv1, "conv2": self.conv2,
                       "linear1": self.linear1, "linear2": self.linear2}
        self.gradients = {name: np.empty_like(value) for name, value in self.parameters()}

    def parameters(self):
        """(name, array) of each parameter, first layer first."""
        return [(f"{name}.{part}", getattr(layer, part))
                for name, layer in self.layers.items() for part in ("weight", "bias")]

    def set_gradients(self, arrays):
        """Where backward() writes the gradients, in the order of parameters()."""
        self.gradients = dict(zip([name for name, _ in self.parameters()], arrays))

    def forward(self, pixels, labels):
        """Pixels [n, 28, 28] with values 0..255, labels [n]: loss of the batch (the mean over its
        images), and how many are told rightly."""
        # Mean and standard deviation of MNIST's training pixels: inputs around zero train faster.
        images = (pixels.astype(np.float32) / 255 - 0.1307) / 0.3081
        hidden = self.conv1.forward(images[..., None].astype(np.float32, copy=False))
        hidden = self.conv2.forward(hidden)
        hidden = self.linear1.forward(hidden.reshape(len(pixels), -1))
        self.hidden = np.maximum(hidden, 0)
        logits = self.linear2.forward(self.hidden)
        shifted = logits - logits.max(axis=1, keepdims=True)
        exponents = np.exp(shifted)
        sums = exponents.sum(axis=1, keepdims=True)
        self.d_logits = exponents / sums
        at = (np.arange(len(labels)), labels)
        self.d_logits[at] -= 1
        self.d_logits /= len(labels)
        loss = float(np.mean(np.log(sums[:, 0]) - shifted[at]))
        return loss, int((logits.argmax(axis=1) == labels).sum())

    def backward(self):
        """Yields (param, grad) as they are made, the last layer first."""

        def emit(name, layer, d_weight, d_bias):
            for part, gradient in (("bias", d_bias), ("weight", d_weight)):
                target = self.gradients[f"{name}.{part}"]
                target[...] = gradient
                yield getattr(layer, part), target

        yield from emit("linear2", self.linear2, *self.linear2.backward(self.d_logits))
        d_hidden = self.d_logits @ self.linear2.weight.T * (self.hidden > 0)
        yield from emit("linear1", self.linear1, *self.linear1.backward(d_hidden))
        d_pooled2 = (d_hidden @ self.linear1.weight.T).reshape(-1, 4, 4, 50)
        yield from emit("conv2", self.conv2, *self.conv2.backward(d_pooled2))
        yield from emit("conv1", self.conv1, *self.conv1.backward(self.conv2.backward_images()))
