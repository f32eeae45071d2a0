"""Data-parallel training of a CNN on MNIST with tutti, in NumPy.

    tutti run -n 2 examples/mnist_cnn/mnist_dist.py             # or mpiexec, srun, torchrun
    python examples/mnist_cnn/mnist_multiprocess.py 2           # without MPI
    python examples/mnist_cnn/mnist_dist.py --plot curves.png run1.json run2.json
"""

import os

# The parallelism is in the ranks. NumPy's libraries read this when they are loaded.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import collections
import contextlib
import math
import sys
import time

import tutti

if getattr(tutti, "__distribution__", None) != "tutti-distopt":  # another on PyPI has that name
    sys.exit(f"mnist_dist: {list(tutti.__path__)[0]} is not the package tutti of tutti-distopt")

import checkpoint
import numpy as np
from cnn import CNN
from mnist import evaluation_shard, load_dataset
from options import OptionError, parse_options
from report import Report, plot, step_fields
from splitmix import Random
from together import together

from tutti import data_partition, opt

PARTITION = 100_000  # elements of parameters that a partial update averages


def train_one_batch(model, sgd, x, y, options):
    """A step on one batch; its loss, and how many images are told rightly."""
    loss, correct = model.forward(x, y)
    if is_local(options):
        sgd(model.backward(), threshold=PARTITION)
    else:
        sgd(model.backward())
    return loss, correct


def is_local(options):
    """Whether ranks update their parameters by themselves, so that their replicas differ."""
    return opt.MODES[options.dist_option].method == "backward_and_partial_update"


def make_optimizer(options, batches, comm):
    momentum, corrected = options.momentum, 0.0
    if options.momentum_correction:
        momentum, corrected = corrected, momentum
    return opt.DistOpt(opt.SGD(options.lr, momentum, weight_decay=options.weight_decay),
                       communicator=comm, dist_option=options.dist_option, spars=options.spars,
                       momentum_correction=corrected, clip_norm=options.clip_norm,
                       warm_up_epochs=options.warm_up_epochs, epoch_steps=batches)


def train_epoch(options, epoch, model, sgd, x, y, report):
    """Trains on this rank's shard; the epoch's results over all ranks."""
    start = time.monotonic()
    order = Random(options.seed, (epoch << 32) + sgd.global_rank).permutation(len(x))
    batches = math.ceil(len(order) / options.batch_size)
    totals = np.zeros(3)  # losses, images told rightly, images
    statistics = collections.Counter()
    for b in range(batches):
        at = order[b * options.batch_size : (b + 1) * options.batch_size]
        loss, correct = train_one_batch(model, sgd, x[at], y[at], options)
        totals += (loss, correct, len(at))
        statistics.update(sgd.statistics())
        report.progress(b + 1, batches, totals[2] * sgd.world_size / (time.monotonic() - start))
    sgd.communicator.all_reduce(totals)
    images_per_second = totals[2] / (time.monotonic() - start)
    if is_local(options):
        sgd.synchronize()
    return dict(train_loss=totals[0], train_accuracy=totals[1] / totals[2],
                images_per_second=images_per_second, **step_fields(statistics, batches))


def evaluate(model, comm, test_x, test_y, batch_size):
    totals = np.zeros(2, np.int64)  # images told rightly, images
    for first in range(0, len(test_x), batch_size):
        x, y = test_x[first : first + batch_size], test_y[first : first + batch_size]
        totals += (model.forward(x, y)[1], len(x))
    comm.all_reduce(totals)
    right, count = totals.tolist()
    return dict(eval_accuracy=right / count, eval_count=count)


def train(options, comm):
    """Trains on this rank; the results of each epoch."""
    rank, ranks = comm.global_rank, comm.world_size
    train_x, train_y, test_x, test_y = together(comm, lambda: load_dataset(options.data_dir))
    train_x, train_y = data_partition(train_x, train_y, rank, ranks)
    part = evaluation_shard(len(test_x), rank, ranks)

    model = CNN(options.seed)
    first_epoch, state = 0, None
    if options.resume:
        options.seed, first_epoch, state = checkpoint.read(options.resume, model, comm)
    batches = math.ceil(len(train_x) / options.batch_size)
    sgd = together(comm, lambda: make_optimizer(options, batches, comm))
    model.set_gradients(sgd.register_parameters(model.parameters()))
    if state:
        together(comm, lambda: checkpoint.load(options.resume, state, sgd))
    if options.save:
        checkpoint.check_path(options.save, comm)
    report = together(comm, lambda: Report(rank == 0, options.json))
    if options.resume:
        report.line(f"Resuming {options.resume} after {first_epoch} epochs")
    results = []
    for epoch in range(first_epoch, options.epochs):
        report.line(f"Starting Epoch {epoch}:")
        start = time.monotonic()
        result = dict(epoch=epoch, world_size=ranks, dist_option=options.dist_option,
                      device="cpu", data="mnist")
        result.update(train_epoch(options, epoch, model, sgd, train_x, train_y, report))
        report.training_ended(result)
        result.update(evaluate(model, comm, test_x[part], test_y[part], options.batch_size))
        result["seconds"] = time.monotonic() - start
        result["lateness"] = comm.lateness()
        report.epoch_ended(result)
        results.append(result)
        if options.save:
            checkpoint.save(options.save, options.seed, epoch + 1, model, sgd)
    return results


def draw(files):
    try:
        plot(files[0], files[1:])
    except (ImportError, LookupError, OSError, ValueError) as error:
        sys.exit(f"mnist_dist: --plot: {error}")


def train_mnist_cnn(nccl_id=None, local_rank=None, world_size=None, arguments=None):
    """One rank: of a launcher without arguments, or with a ticket. `arguments`: the command line."""
    with contextlib.suppress(OptionError):  # what is wrong with them one rank says for all
        options = parse_options(arguments)
        if options.plot:
            return draw(options.plot)
    comm, rank = None, ""
    try:
        ticket = () if nccl_id is None else (local_rank, world_size, nccl_id)
        comm = tutti.Communicator(*ticket)
        rank = f"rank {comm.global_rank}: "
        return train(together(comm, lambda: parse_options(arguments)), comm)
    except (OSError, ValueError, tutti.Error) as error:
        if comm is not None:
            comm.abort(str(error))
        print(f"mnist_dist: {rank}{error}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    train_mnist_cnn()
