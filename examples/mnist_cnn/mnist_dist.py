"""Data-parallel training of a CNN on MNIST with tutti, in NumPy.

    mpiexec --hostfile hostfiles/localhost python examples/mnist_cnn/mnist_dist.py
    python examples/mnist_cnn/mnist_multiprocess.py 2           # without MPI
    python examples/mnist_cnn/mnist_dist.py --plot curves.png run1.json run2.json
"""

import os

# The parallelism is in the ranks. NumPy's libraries read this when they are loaded.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse
import json
import math
import sys
import time

import numpy as np
from cnn import CNN
from mnist import evaluation_shard, load_dataset

import tutti
from tutti import data_partition, opt

DIST_OPTIONS = ("fp32", "fp16", "bf16", "partialUpdate", "sparseTopK", "sparseThreshold")
PARTITION = 100_000  # elements of parameters that a partial update averages


def parse_options(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", metavar="DIR", help="MNIST's IDX files, plain or .gz")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0, help="initial weights and shuffling")
    parser.add_argument("--dist-option", choices=DIST_OPTIONS, default="fp32")
    parser.add_argument("--spars", type=float, default=0.05,
                        help="sparseTopK: the fraction sent; sparseThreshold: the least magnitude")
    parser.add_argument("--json", metavar="FILE", help="write one JSON object per epoch")
    parser.add_argument("--plot", nargs="+", metavar="FILE",
                        help="draw the first FILE (an image) from JSON files, and do nothing else")
    return parser.parse_args(arguments)


def train_one_batch(model, sgd, x, y, dist_option, spars):
    """A step on one batch; its loss, and how many images are told rightly."""
    loss, correct = model.forward(x, y)
    gradients = model.backward()
    if dist_option == "fp32":
        sgd(gradients)
    elif dist_option in ("fp16", "bf16"):
        sgd.backward_and_update_half(gradients)
    elif dist_option == "partialUpdate":
        sgd.backward_and_partial_update(gradients, threshold=PARTITION)
    else:
        sgd.backward_and_sparse_update(gradients, spars=spars, topK=dist_option == "sparseTopK")
    return loss, correct


def stdout_is_terminal():
    if not sys.stdout.isatty() or "OMPI_COMM_WORLD_RANK" not in os.environ:
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


class Progress:
    """A bar on a terminal, and nothing elsewhere."""

    def __init__(self, speaks):
        self.shows = speaks and stdout_is_terminal()
        self.drawn = 0.0

    def draw(self, done, batches, images_per_second):
        if self.shows and time.monotonic() - self.drawn > 0.2:
            self.drawn = time.monotonic()
            bar = "=" * (40 * done // batches)
            print(f"\r[{bar:<40}] {done}/{batches}  {images_per_second:.0f} images/s ", end="",
                  flush=True)

    def clear(self):
        if self.shows:
            print("\r\033[K", end="")


def evaluate(model, comm, test_x, test_y, batch_size):
    totals = np.zeros(2, np.int64)  # images told rightly, images
    for first in range(0, len(test_x), batch_size):
        x, y = test_x[first : first + batch_size], test_y[first : first + batch_size]
        totals += (model.forward(x, y)[1], len(x))
    comm.all_reduce(totals)
    return totals


def train(options, nccl_id=None, local_rank=None, world_size=None):
    """Trains on this rank; the results of each epoch."""
    sgd = opt.DistOpt(opt.SGD(options.lr, options.momentum, weight_decay=options.weight_decay),
                      nccl_id=nccl_id, local_rank=local_rank, world_size=world_size,
                      half="bfloat16" if options.dist_option == "bf16" else "float16")
    comm, rank, ranks = sgd.communicator, sgd.global_rank, sgd.world_size
    train_x, train_y, test_x, test_y = load_dataset(options.data_dir)
    train_x, train_y = data_partition(train_x, train_y, rank, ranks)
    part = evaluation_shard(len(test_x), rank, ranks)
    test_x, test_y = test_x[part], test_y[part]

    model = CNN(options.seed)
    model.set_gradients(sgd.register_parameters(model.parameters()))
    results = []
    output = open(options.json, "w") if options.json and rank == 0 else None
    for epoch in range(options.epochs):
        if rank == 0:
            print(f"Starting Epoch {epoch}:", flush=True)
        start = time.monotonic()
        order = np.random.default_rng((options.seed, epoch, rank)).permutation(len(train_x))
        batches = math.ceil(len(order) / options.batch_size)
        progress = Progress(rank == 0)
        totals = np.zeros(3)  # losses, images told rightly, images
        sent = 0
        for b in range(batches):
            at = order[b * options.batch_size : (b + 1) * options.batch_size]
            loss, correct = train_one_batch(model, sgd, train_x[at], train_y[at],
                                            options.dist_option, options.spars)
            totals += (loss, correct, len(at))
            sent += sgd.bytes_per_step
            progress.draw(b + 1, batches, totals[2] * ranks / (time.monotonic() - start))
        comm.all_reduce(totals)
        seconds = time.monotonic() - start
        if options.dist_option == "partialUpdate":
            sgd.synchronize()
        result = dict(epoch=epoch, train_loss=totals[0], train_accuracy=totals[1] / totals[2])
        progress.clear()
        if rank == 0:
            print(f"Training loss = {totals[0]:f}, training accuracy = {totals[1] / totals[2]:f}",
                  flush=True)
        right, count = evaluate(model, comm, test_x, test_y, options.batch_size).tolist()
        result.update(eval_accuracy=right / count, eval_count=count,
                      seconds=time.monotonic() - start, images_per_second=totals[2] / seconds,
                      world_size=ranks, dist_option=options.dist_option, device="cpu",
                      data="mnist", bytes_per_step=sent // batches)
        results.append(result)
        if rank == 0:
            print(f"Evaluation accuracy = {right / count:f}, Elapsed Time = "
                  f"{result['seconds']:f}s", flush=True)
        if output:
            print(json.dumps(result), file=output, flush=True)
    return results


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
    figure.savefig(image)


def train_mnist_cnn(nccl_id=None, local_rank=None, world_size=None, arguments=None):
    """One rank: under mpiexec without arguments, or with a ticket. `arguments`: the command line."""
    options = parse_options(arguments)
    if options.plot:
        return plot(options.plot[0], options.plot[1:])
    try:
        return train(options, nccl_id, local_rank, world_size)
    except (OSError, ValueError, tutti.Error) as error:
        print(f"mnist_dist: {error}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    train_mnist_cnn()
