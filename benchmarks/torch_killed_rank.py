#!/usr/bin/env python3
"""How soon DistributedDataParallel's other ranks are told that one was killed, and in what words: over
tutti and over Gloo, in turns.

    PYTHONPATH=build/release/python python3 benchmarks/torch_killed_rank.py [--rounds 5] [--ranks 3]

The last rank kills itself in the middle of a backward pass. Prints a JSON line for each backend: the
median and the most seconds from the kill to the last survivor's error, how many of the survivors'
errors name the killed rank, and one of them.
"""

import argparse
import json
import os
import re
import signal
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS_BEFORE = 10


def train(rank, backend, options, port, moment, told):
    import tutti.torch  # noqa: F401 - registers the backend

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group(backend, rank=rank, world_size=options.ranks)
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))), bucket_cap_mb=4)
    parameters = list(model.parameters())
    step, victim = 0, options.ranks - 1

    def die(_):
        if rank == victim and step == STEPS_BEFORE:
            moment.value = time.monotonic()
            os.kill(os.getpid(), signal.SIGKILL)

    parameters[len(parameters) // 2].register_hook(die)
    try:
        for step in range(STEPS_BEFORE + 1):
            model(torch.randn(8, 1024)).sum().backward()
            model.zero_grad()
        told.put((time.monotonic(), "nothing was raised"))
    except Exception as error:
        told.put((time.monotonic(), " ".join(str(error).split())))
    told.close()
    told.join_thread()
    os._exit(0)  # nothing more can be done with the group


def lose_a_rank(backend, options):
    """Seconds until the last survivor knows it, and what each was told."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn = mp.get_context("spawn")
    moment, told = spawn.Value("d", 0.0), spawn.Queue()
    ranks = [spawn.Process(target=train, args=(rank, backend, options, port, moment, told),
                           daemon=True)
             for rank in range(options.ranks)]
    for rank in ranks:
        rank.start()
    ends = [told.get(timeout=options.seconds) for _ in range(options.ranks - 1)]
    for rank in ranks:
        rank.join()
    assert ranks[-1].exitcode == -signal.SIGKILL
    return max(when for when, _ in ends) - moment.value, [words for _, words in ends]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120, help="what a round may take")
    options = parser.parse_args()
    seconds, words = {}, {}
    for _ in range(options.rounds):
        for backend in ("tutti", "gloo"):
            took, told = lose_a_rank(backend, options)
            seconds.setdefault(backend, []).append(took)
            words.setdefault(backend, []).extend(told)
    for backend, all_words in words.items():
        named = sum(bool(re.search(rf"\brank {options.ranks - 1}\b", text)) for text in all_words)
        print(json.dumps({"backend": backend, "ranks": options.ranks,
                          "median_s": round(statistics.median(seconds[backend]), 3),
                          "most_s": round(max(seconds[backend]), 3),
                          "named": f"{named} of {len(all_words)}", "words": all_words[0][:160]}))


if __name__ == "__main__":
    main()
