#!/usr/bin/env python3
"""Training speed of the example beside PyTorch's DistributedDataParallel over Gloo.

The same CNN, data, batch size, optimiser and number of threads (one a rank). The runs are
interleaved, round after round; the table shows medians of images per second of training alone.
Each run must have learned: a fast program that computes nonsense does not count.

    mnist_vs_torch.py [--rounds 5] [--ranks 1 2] [--images 19200] [--data-dir DIR] [--json FILE]
"""

import argparse
import gzip
import json
import math
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
BATCH_SIZE = 64
TEST_IMAGES = 2000
# What one epoch must reach to count; by chance, ten classes give a loss of 2.30 and 0.1.
MOST_LOSS = 2.2
LEAST_ACCURACY = 0.7
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


# ---------------------------------------------------------------------------------------- data


def read_idx(path):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        data = file.read()
    dimensions = data[3]
    shape = np.frombuffer(data, ">u4", dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.tobytes())


def file_names(part):
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def made_up_images(count, rng, patterns):
    labels = rng.integers(0, 10, count, dtype=np.uint8)
    noise = rng.integers(0, 64, (count, 28, 28), dtype=np.uint8)
    return patterns[labels] + noise, labels


def prepare_data(source, folder, images):
    """Writes the files that both programs read: the first `images` of MNIST, or made-up ones."""
    if source is None:
        rng = np.random.default_rng(0)
        patterns = rng.integers(0, 192, (10, 28, 28), dtype=np.uint8)
        parts = {"train": made_up_images(images, rng, patterns),
                 "t10k": made_up_images(TEST_IMAGES, rng, patterns)}
    else:
        parts = {}
        for part, count in (("train", images), ("t10k", TEST_IMAGES)):
            paths = [source / name for name in file_names(part)]
            paths = [path if path.exists() else path.with_name(path.name + ".gz") for path in paths]
            parts[part] = [read_idx(path)[:count] for path in paths]
    for part, arrays in parts.items():
        for name, array in zip(file_names(part), arrays):
            write_idx(folder / name, array)


def find_source(data_dir):
    """Where the program itself would look for MNIST; None if there is none."""
    named = data_dir or os.environ.get("TUTTI_MNIST_DIR")
    if named:
        return pathlib.Path(named)
    usual = REPOSITORY / "data" / "mnist"
    return usual if usual.exists() else None


# --------------------------------------------------------------------------------------- tutti


def run_tutti(program, ranks, data):
    with tempfile.TemporaryDirectory() as scratch:
        result = pathlib.Path(scratch) / "result.json"
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        subprocess.run(["mpiexec", "--oversubscribe", "--bind-to", "none", "-n", str(ranks),
                        str(program), "--epochs", "1", "--batch-size", str(BATCH_SIZE),
                        "--data-dir", str(data), "--json", str(result)],
                       env=environment, stdout=subprocess.DEVNULL, check=True, timeout=600)
        epoch = json.loads(result.read_text())
    return {key: epoch[key] for key in ("images_per_second", "train_loss", "eval_accuracy")}


# ------------------------------------------------------------------------------------- PyTorch


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_torch(ranks, data):
    environment = dict(os.environ, **ONE_THREAD, MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks),
                       GLOO_SOCKET_IFNAME="lo")
    workers = [subprocess.Popen([sys.executable, __file__, "--torch-worker", str(data)],
                                env=dict(environment, RANK=str(rank)),
                                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL)
               for rank in range(ranks)]
    try:
        output, _ = workers[0].communicate(timeout=600)
        if any([worker.wait(timeout=60) for worker in workers]):
            raise RuntimeError("a PyTorch worker failed")
    finally:
        for worker in workers:
            worker.kill()
    return json.loads(output)


def torch_worker(data):
    """One rank of the PyTorch program; rank 0 prints its result as JSON."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    def load(part):
        images, labels = (read_idx(data / name) for name in file_names(part))
        pixels = torch.from_numpy(images.astype(np.float32)).unsqueeze(1)
        return (pixels / 255 - 0.1307) / 0.3081, torch.from_numpy(labels.astype(np.int64))

    train_x, train_y = load("train")
    test_x, test_y = load("t10k")
    share = len(train_y) // world_size

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))
    model = nn.parallel.DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=1e-5)

    def step(indices):
        optimizer.zero_grad()
        loss = criterion(model(train_x[indices]), train_y[indices])
        loss.backward()
        optimizer.step()
        return loss.detach()

    order = rank * share + torch.randperm(share, generator=torch.Generator().manual_seed(rank))
    batches = order.split(BATCH_SIZE)
    step(batches[0])  # what happens only once does not count
    dist.barrier()
    start = time.perf_counter()
    total = sum(step(batch) for batch in batches)
    dist.barrier()
    seconds = time.perf_counter() - start

    dist.all_reduce(total)
    with torch.no_grad():
        correct = sum((model.module(x).argmax(1) == y).sum()
                      for x, y in zip(test_x.split(500), test_y.split(500)))
    if rank == 0:
        print(json.dumps({"images_per_second": share * world_size / seconds,
                          "train_loss": float(total),
                          "eval_accuracy": float(correct) / len(test_y)}))
    dist.destroy_process_group()


# -------------------------------------------------------------------------------------- report


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--images", type=int, default=19200, help="training images of a run")
    parser.add_argument("--data-dir", help="MNIST; else as mnist_dist looks for it")
    parser.add_argument("--program", type=pathlib.Path,
                        default=REPOSITORY / "build" / "release" / "bin" / "mnist_dist")
    parser.add_argument("--json", type=pathlib.Path, help="JSON Lines: each run, each median")
    parser.add_argument("--torch-worker", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(arguments, data, write):
    """Runs everything; returns the speeds of each (program, ranks)."""
    programs = {"tutti": lambda ranks: run_tutti(arguments.program, ranks, data),
                "torch": lambda ranks: run_torch(ranks, data)}
    speeds = {}
    for number in range(arguments.rounds):
        for ranks in arguments.ranks:
            for name, run in programs.items():
                result = run(ranks)
                steps = math.ceil(arguments.images / ranks / BATCH_SIZE) * ranks
                result["mean_loss"] = result.pop("train_loss") / steps
                write({"kind": "run", "program": name, "ranks": ranks, "round": number, **result})
                if result["mean_loss"] > MOST_LOSS or result["eval_accuracy"] < LEAST_ACCURACY:
                    sys.exit(f"{name} on {ranks} ranks did not learn: {result}")
                speeds.setdefault((name, ranks), []).append(result["images_per_second"])
                print(f"round {number}  {name:5}  ranks {ranks}  "
                      f"{result['images_per_second']:7.0f} images/s  "
                      f"mean loss {result['mean_loss']:.4f}  "
                      f"accuracy {result['eval_accuracy']:.4f}", flush=True)
    return speeds


def main():
    arguments = parse_arguments()
    if arguments.torch_worker:
        torch_worker(arguments.torch_worker)
        return
    source = find_source(arguments.data_dir)
    print(f"{arguments.images} images a run of " +
          (f"MNIST from {source}" if source else "made-up patterns (no MNIST was found)") +
          f", load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")

    lines = open(arguments.json, "w") if arguments.json else None

    def write(record):
        if lines:
            print(json.dumps(record), file=lines, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        prepare_data(source, pathlib.Path(folder), arguments.images)
        speeds = measure(arguments, pathlib.Path(folder), write)

    medians = {key: statistics.median(values) for key, values in speeds.items()}
    print(f"\n{'ranks':>5}  {'tutti':>9}  {'PyTorch':>9}  {'ratio':>6}   (medians, images/s)")
    for ranks in arguments.ranks:
        tutti, torch = medians["tutti", ranks], medians["torch", ranks]
        print(f"{ranks:5}  {tutti:9.0f}  {torch:9.0f}  {tutti / torch:6.2f}")
        for name in ("tutti", "torch"):
            write({"kind": "median", "program": name, "ranks": ranks,
                   "images_per_second": medians[name, ranks],
                   "ratio": medians[name, ranks] / torch,
                   "speedup": medians[name, ranks] / medians[name, arguments.ranks[0]]})
    if len(arguments.ranks) > 1:
        first, last = arguments.ranks[0], arguments.ranks[-1]
        for name, label in (("tutti", "tutti"), ("torch", "PyTorch")):
            print(f"{label}: {last} ranks are {medians[name, last] / medians[name, first]:.2f} "
                  f"times as fast as {first}")


if __name__ == "__main__":
    main()
