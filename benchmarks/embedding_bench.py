#!/usr/bin/env python3
"""A step of an embedding with sparse gradients in tutti.opt.DistOpt: as rows beside as a whole.

    PYTHONPATH=build/release/python python3 benchmarks/embedding_bench.py [--steps 15] [--only NAME]

Two ranks train two copies of a table in turns: one is registered as a model, so that the rows that a
step has touched travel, the other as a parameter of which nothing is known, so that all of it does.
Medians of rank 0, a JSON line for each optimiser; both copies are compared.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time

import torch

import tutti
from tutti import opt

OPTIMIZERS = {
    "SGD": lambda: opt.SGD(lr=0.1),
    "Adagrad": lambda: opt.Adagrad(lr=0.1),
    "SGD with momentum": lambda: opt.SGD(lr=0.1, momentum=0.9),
    "Adam": lambda: opt.Adam(lr=0.1),
}


def make(communicator, kind, args, by_rows):
    torch.manual_seed(0)
    table = torch.nn.Embedding(args.rows, args.width, sparse=True)
    dist = opt.DistOpt(OPTIMIZERS[kind](), communicator=communicator)
    dist.register_parameters(table if by_rows else [table.weight])
    return table, dist


def train(communicator, kind, args):
    sides = {"rows": make(communicator, kind, args, True), "whole": make(communicator, kind, args, False)}
    times = {name: [] for name in sides}
    for step in range(args.steps + 2):
        generator = torch.Generator().manual_seed(1000 * step + communicator.global_rank)
        ids = torch.randint(0, args.rows, (args.ids,), generator=generator)
        for name, (table, dist) in sides.items():
            communicator.barrier()
            start = time.perf_counter()
            dist(table(ids).square().sum())
            times[name].append(1e3 * (time.perf_counter() - start))
    assert torch.equal(sides["rows"][0].weight, sides["whole"][0].weight)
    return {f"{name}_ms": statistics.median(values[2:]) for name, values in times.items()} | {
        f"{name}_bytes": dist.bytes_per_step for name, (_, dist) in sides.items()}


def work(rank, args, ticket):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    torch.set_num_threads(1)
    communicator = tutti.Communicator(rank, 2, ticket)
    for kind in OPTIMIZERS:
        if args.only in (None, kind):
            figures = train(communicator, kind, args)
            if rank == 0:
                print(json.dumps({"optimizer": kind, **{name: float(f"{value:.4g}")
                                                        for name, value in figures.items()}}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--ids", type=int, default=4096, help="of a rank in a step")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--only", choices=OPTIMIZERS)
    args = parser.parse_args()
    ticket = tutti.NcclIdHolder()
    ranks = [multiprocessing.Process(target=work, args=(rank, args, ticket)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    raise SystemExit(max(abs(rank.exitcode) for rank in ranks))


if __name__ == "__main__":
    main()
