#!/usr/bin/env python3
"""torch.distributed over tutti beside Gloo: all_reduce, and training with DistributedDataParallel over
either, and with tutti's DistributedOptimizer.

    PYTHONPATH=build/release/python python3 benchmarks/torch_vs_gloo.py [--rounds 5] [--only NAME]

Two ranks, each pinned to a core, have a group of either backend, and use them in turns. Medians of
all rounds; the sums and the trained parameters of both are compared.
"""

import argparse
import json
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 64


def show(**figures):
    print(json.dumps({name: value if isinstance(value, str) else float(f"{value:.4g}")
                      for name, value in figures.items()}), flush=True)


def time_sums(groups, elements, calls, rounds, in_symmetric_memory=False):
    """Microseconds a call, by backend: those of rank 0. Tutti's tensor may lie as the buckets of its
    DistributedOptimizer do."""
    tensors, times = {name: torch.empty(elements) for name in groups}, {name: [] for name in groups}
    if in_symmetric_memory:
        tensors["tutti"] = torch.from_numpy(groups["tutti"].communicator.empty(elements))
    for _ in range(rounds + 1):
        for name, group in groups.items():
            data = tensors[name]
            for _ in range(calls):
                data.fill_(1 + dist.get_rank())
                dist.barrier(group=group)
                start = time.perf_counter()
                dist.all_reduce(data, group=group)
                times[name].append(1e6 * (time.perf_counter() - start))
                assert data[0] == 3 and data[-1] == 3
    return {name: statistics.median(values[calls:]) for name, values in times.items()}


def cnn():
    return nn.Sequential(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 500), nn.ReLU(),
                         nn.Linear(500, 10)), torch.randn(BATCH, 1, 28, 28)


def mlp(batch=8):
    """25 M parameters, of which a batch makes little use."""
    return nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
                         nn.Linear(4096, 1240), nn.ReLU(), nn.Linear(1240, 10)), torch.randn(batch, 784)


def time_training(make, groups, steps, rounds):
    """Images a second of both ranks, by backend; "optimizer" is tutti's DistributedOptimizer instead of
    DistributedDataParallel, "alone" the model without any exchange."""
    from tutti.torch import DistributedOptimizer

    models = {}
    for name, group in {**groups, "optimizer": groups["tutti"], "alone": None}.items():
        torch.manual_seed(1)
        model, x = make()
        sgd = torch.optim.SGD(model.parameters(), 0.005, momentum=0.9)
        if name == "optimizer":
            sgd = DistributedOptimizer(sgd, model.named_parameters(), group=group)
        elif name != "alone":
            model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
        models[name] = model, x, sgd
    times = {name: [] for name in models}
    for _ in range(rounds + 1):
        for name, (model, x, sgd) in models.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                sgd.zero_grad(set_to_none=False)
                nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 10).backward()
                sgd.step()
            times[name].append(2 * steps * len(x) / (time.perf_counter() - start))
    first, *others = (list(model.parameters()) for name, (model, _, _) in models.items()
                      if name != "alone")
    for parameters in others:
        torch.testing.assert_close(parameters, first)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def run(rank, port, options):
    import tutti.torch  # noqa: F401 - registers the backend

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    groups = {name: dist.new_group(backend=name) for name in ("tutti", "gloo")}
    sides = {
        "all_reduce of 64 B, us": lambda: time_sums(groups, 16, 300, options.rounds),
        "all_reduce of 25 MiB, us": lambda: time_sums(groups, 25 * 2**18, 3, options.rounds),
        "all_reduce of 25 MiB in symmetric memory, us": lambda: time_sums(
            groups, 25 * 2**18, 3, options.rounds, True),
        "training, CNN, images/s": lambda: time_training(cnn, groups, 20, options.rounds),
        "training, MLP of 25 M, images/s": lambda: time_training(mlp, groups, 3, options.rounds),
        "training, MLP of 25 M, batch 1, images/s": lambda: time_training(
            lambda: mlp(1), groups, 10, options.rounds),
    }
    for what, side in sides.items():
        if options.only in what:
            figures = side()
            if rank == 0:
                times = {name: figure / figures["gloo"] if "/s" in what else figures["gloo"] / figure
                         for name, figure in figures.items() if name != "gloo"}
                show(what=what, **figures, **{f"{name}_times": value for name, value in times.items()})
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="what has this in its name")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(run, (port, options), nprocs=2)


if __name__ == "__main__":
    main()
