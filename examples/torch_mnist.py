#!/usr/bin/env python3
"""PyTorch's DistributedDataParallel training a CNN on MNIST over tutti: an ordinary script of
PyTorch's, in which the backend's name is all that must be tutti's. With --mode its gradients travel in
one of tutti's modes, with --wrap optimizer without DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/torch_mnist.py [--data-dir DIR] [--epochs 2]
        [--mode sparseTopK --spars 0.01] [--wrap optimizer]
    mpiexec -n 2 python3 examples/torch_mnist.py
    tutti run -n 2 examples/torch_mnist.py

The data are looked for in --data-dir and TUTTI_MNIST_DIR; without them it draws noisy digits of its
own, and says so.
"""

import argparse
import gzip
import os
import pathlib
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tutti.torch  # registers the backend
from tutti.torch import hooks


def read(folder, name):
    path = folder / name
    opener = gzip.open if not path.exists() else open
    with opener(path if path.exists() else path.with_name(name + ".gz"), "rb") as file:
        data = file.read()
    shape = numpy.frombuffer(data, ">u4", data[3], 4)
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * data[3]).reshape(shape).copy()


def load(folder):
    """Training and test images with labels, as tensors."""
    if folder is not None:
        return [(torch.from_numpy(read(folder, f"{part}-images-idx3-ubyte")),
                 torch.from_numpy(read(folder, f"{part}-labels-idx1-ubyte")).long())
                for part in ("train", "t10k")]
    random = torch.Generator().manual_seed(0)
    patterns = torch.randint(0, 192, (10, 28, 28), generator=random)
    parts = []
    for count in (8192, 1000):
        labels = torch.randint(0, 10, (count,), generator=random)
        parts.append((patterns[labels] + torch.randint(0, 64, (count, 28, 28), generator=random),
                      labels))
    return parts


def pixels(images):
    return (images.float().unsqueeze(1) / 255 - 0.1307) / 0.3081


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--data-dir", type=pathlib.Path,
                        default=os.environ.get("TUTTI_MNIST_DIR") or None)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--mode", default="fp32",
                        help="fp32, fp16, bf16, sparseTopK or sparseThreshold")
    parser.add_argument("--spars", type=float, help="what a sparse mode sends")
    parser.add_argument("--wrap", choices=("ddp", "optimizer"), default="ddp",
                        help="what averages gradients: DistributedDataParallel, with a hook in "
                             "other modes than fp32, or tutti's DistributedOptimizer")
    options = parser.parse_args()
    dist.init_process_group("tutti", init_method="tutti://")  # of any launcher
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    (images, labels), (test_images, test_labels) = load(options.data_dir)
    if rank == 0 and not options.data_dir:
        print("No MNIST: drawing digits.")

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5),
                        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 500), nn.ReLU(),
                        nn.Linear(500, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    of_mode = {} if options.spars is None else {"spars": options.spars}
    if options.wrap == "ddp":
        model = DistributedDataParallel(net)
        if options.mode != "fp32":
            model.register_comm_hook(hooks.State(model, options.mode, **of_mode), hooks.hook)
    else:
        model = net
        tutti.torch.broadcast_parameters(net)
        optimizer = tutti.torch.DistributedOptimizer(optimizer, net.named_parameters(),
                                                     mode=options.mode, **of_mode)
    for epoch in range(options.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        batches = order[:len(order) // ranks * ranks][rank::ranks].split(options.batch_size)
        start, total = time.perf_counter(), torch.zeros(1)
        for batch in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels(images[batch])), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(batch)
        dist.all_reduce(total)
        seconds = time.perf_counter() - start
        with torch.no_grad():
            right = sum((net(pixels(x)).argmax(1) == y).sum() for x, y in zip(
                test_images.split(1000)[rank::ranks], test_labels.split(1000)[rank::ranks]))
            right = torch.as_tensor(right)
        dist.all_reduce(right)
        if rank == 0:
            print(f"Epoch {epoch}: training loss {total.item() / len(order):.4f}, evaluation "
                  f"accuracy {right.item() / len(test_labels):.4f}, "
                  f"{len(order) / seconds:.0f} images/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
