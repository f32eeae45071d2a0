#!/usr/bin/env python3
"""What tutti.distributed takes: starting ranks, telling a failure, keys and values, and, with
PyTorch 2.1 or newer, summing gradients beside its DistributedDataParallel over Gloo.

    PYTHONPATH=build/release/python benchmarks/distributed_bench.py [--repeat 7] [--ranks 2 8]
"""

import argparse
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import tutti.distributed as dist

EMPTY = """
import tutti.distributed as dist
@dist.launcher(n_gpus={ranks}, start_method="{start_method}")
def main():
    pass
if __name__ == "__main__":
    main()
"""


def show(**figures):
    print(json.dumps({name: value if isinstance(value, (str, int)) else float(f"{value:.4g}")
                      for name, value in figures.items()}), flush=True)


def program(ranks, start_method, repeat):
    """Seconds of a whole program around an empty function, imports included."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "empty.py")
        with open(path, "w") as file:
            file.write(EMPTY.format(ranks=ranks, start_method=start_method))
        for _ in range(repeat):
            start = time.perf_counter()
            subprocess.run([sys.executable, path], check=True)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def fail(how, path):
    if dist.get_rank() == 1:
        with open(path, "w") as file:
            file.write(str(time.monotonic()))
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("out of data")
    dist.group_barrier()


def failure(ranks, how, repeat):
    """Milliseconds from a rank's failure to the exception in the parent, with no rank left."""
    times = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(repeat):
            try:
                dist.launcher(fail, n_gpus=ranks)(how, file.name)
                sys.exit("nothing has failed")
            except dist.RankFailed as error:
                with open(file.name) as when:
                    times.append(1e3 * (time.monotonic() - float(when.read())))
                if error.rank != 1:
                    sys.exit(f"the failure is said to be of rank {error.rank}")
    return statistics.median(times)


def client(calls):
    """Microseconds a call, on each rank."""
    client, rank, times = dist.get_client(), dist.get_rank(), {}

    def timed(name, call):
        dist.group_barrier()
        start = time.perf_counter()
        for i in range(calls):
            call(i)
        times[name] = 1e6 * (time.perf_counter() - start) / calls

    timed("user_set", lambda i: client.user_set(f"key of {rank}", i))
    timed("user_get", lambda i: client.user_get(f"key of {rank}"))
    timed("from rank to rank", lambda i: client.user_set(f"{i}", i) if (i + rank) % 2
          else client.user_pop(f"{i}"))
    timed("group_barrier", lambda i: dist.group_barrier())
    return times


def has_hooks():
    """Whether PyTorch is 2.1 or newer, as sums in its backward passes need it."""
    import torch

    return hasattr(torch.Tensor, "register_post_accumulate_grad_hook")


def network():
    import torch

    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers)


def gradients(port, repeat):
    """Milliseconds of a forward and backward pass, by way to sum; the sums are compared."""
    import torch

    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://localhost:{port}", rank=rank,
                                         world_size=ranks)
    ours, alone = network(), network()
    dist.make_allreduce_cb("mean").attach(ours.parameters())
    theirs = torch.nn.parallel.DistributedDataParallel(network())
    x = torch.randn(32, 1024, generator=torch.Generator().manual_seed(rank))
    times = {"tutti": [], "DistributedDataParallel": [], "no sum": []}
    for _ in range(repeat + 1):
        for name, net in (("tutti", ours), ("DistributedDataParallel", theirs), ("no sum", alone)):
            net.zero_grad()
            dist.group_barrier()
            start = time.perf_counter()
            net(x).square().mean().backward()
            times[name].append(1e3 * (time.perf_counter() - start))
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a.grad, b.grad)
    torch.distributed.destroy_process_group()
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    arguments = parser.parse_args()
    for ranks in arguments.ranks:
        for start_method in ("fork", "spawn"):
            show(what="a program around an empty function", ranks=ranks, start=start_method,
                 seconds=program(ranks, start_method, arguments.repeat))
        for how in ("raised", "killed"):
            show(what=f"a rank that was {how}" if how == "killed" else "an exception", ranks=ranks,
                 ms=failure(ranks, how, arguments.repeat))
    results = dist.launcher(client, n_gpus=2)(5000)
    show(what="microseconds a call, 2 ranks", **{name: max(one[name] for one in results)
                                                 for name in results[0]})
    if importlib.util.find_spec("torch") is not None and has_hooks():
        with socket.socket() as one:
            one.bind(("localhost", 0))
            port = one.getsockname()[1]
        run = dist.launcher(gradients, n_gpus=2, start_method="spawn")
        show(what="ms of a pass with 6.3 M gradients, 2 ranks", **run(port, 3 * arguments.repeat)[0])


if __name__ == "__main__":
    main()
