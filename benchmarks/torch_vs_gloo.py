#!/usr/bin/env python3
"""torch.distributed over tutti beside Gloo: collectives, messages, and training with
DistributedDataParallel over either, with a hook of tutti's, and with its DistributedOptimizer.

    PYTHONPATH=build/release/python python3 benchmarks/torch_vs_gloo.py [--rounds 5] [--only NAME]

Two ranks, each pinned to a core, have a group of either backend, and use them in turns. Medians of
all rounds; what the operations write, and the trained parameters of both, are checked.
"""

import argparse
import functools
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


def sum_up(data, _, group):
    dist.all_reduce(data, group=group)
    return data, 3


def give_back(data, _, group):
    """There and back."""
    if dist.get_rank() == 0:
        dist.send(data, 1, group=group)
        dist.recv(data, 1, group=group)
    else:
        dist.recv(data, 0, group=group)
        dist.send(data, 0, group=group)
    return data, 1


def broadcast(data, _, group):
    dist.broadcast(data, 1, group=group)
    return data, 2


def all_gather(data, whole, group):
    dist.all_gather_into_tensor(whole, data, group=group)
    return whole[len(data):], 2


def reduce_scatter(data, whole, group):
    dist.reduce_scatter_tensor(data, whole, group=group)
    return data, 10


def all_to_all(data, whole, group):
    got = whole[:len(data)]
    dist.all_to_all_single(got, data, group=group)
    return got[len(data) // 2:], 2


OPERATIONS = {"all_reduce": sum_up, "broadcast": broadcast, "all_gather": all_gather,
              "reduce_scatter": reduce_scatter, "all_to_all": all_to_all,
              "send there and back": give_back}


def time_calls(groups, operation, elements, calls, rounds, in_symmetric_memory=False):
    """Microseconds a call, by backend: those of rank 0. Tutti's tensor may lie as the buckets of its
    DistributedOptimizer do."""
    tensors, times = {name: torch.empty(elements) for name in groups}, {name: [] for name in groups}
    whole = torch.empty(2 * elements)
    if in_symmetric_memory:
        tensors["tutti"] = torch.from_numpy(groups["tutti"].communicator.empty(elements))
    for _ in range(rounds + 1):
        for name, group in groups.items():
            data = tensors[name]
            for _ in range(calls):
                data.fill_(1 + dist.get_rank())
                whole.fill_(5)
                dist.barrier(group=group)
                start = time.perf_counter()
                result, expected = operation(data, whole, group)
                times[name].append(1e6 * (time.perf_counter() - start))
                assert result[0] == expected and result[-1] == expected, operation
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
    """Images a second of both ranks, by backend; "hook" is tutti's fp32 as a communication hook,
    "optimizer" its DistributedOptimizer instead of DistributedDataParallel, "alone" the model without
    any exchange."""
    from tutti.torch import DistributedOptimizer, hooks

    models = {}
    tutti = groups["tutti"]
    for name, group in {**groups, "hook": tutti, "optimizer": tutti, "alone": None}.items():
        torch.manual_seed(1)
        model, x = make()
        sgd = torch.optim.SGD(model.parameters(), 0.005, momentum=0.9)
        if name == "optimizer":
            sgd = DistributedOptimizer(sgd, model.named_parameters(), group=group)
        elif name != "alone":
            model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
        if name == "hook":
            model.register_comm_hook(hooks.State(model, "fp32"), hooks.hook)
        models[name] = model, x, sgd
    times = {name: [] for name in models}
    for _ in range(rounds + 1):
        for name, (model, x, sgd) in models.items():
            dist.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                sgd.zero_grad()
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
        **{f"{name} of {size}, us": functools.partial(
            time_calls, groups, operation, elements, calls, options.rounds)
           for name, operation in OPERATIONS.items()
           for size, elements, calls in (("64 B", 16, 300), ("25 MiB", 25 * 2**18, 3))},
        "all_reduce of 25 MiB in symmetric memory, us": lambda: time_calls(
            groups, sum_up, 25 * 2**18, 3, options.rounds, True),
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
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="what has this in its name")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(run, (port, options), nprocs=2)


if __name__ == "__main__":
    main()
