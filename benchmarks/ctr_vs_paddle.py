#!/usr/bin/env python3
"""Models on parameter servers: what the servers cost, and the same beside Paddle 1.8.5.

ctr: 26 embeddings of 16 floats and 13 numbers, layers of 128, 64 and 2, batches of 512 of random
ids below a million; mlp: 784, 1024, 1024 and 10 (1.86 million parameters), batches of 64; SGD.
Inputs tell the label, so that training shows. Two workers with a thread each. Steps a second of a
worker, of rounds in which all take turns:

    alone      the two processes train for themselves, each with all parameters in its own memory
    compute    ctr: the same without a table: its rows are constants
    sync, half-async, async, geo          with tutti's servers
    sync-in-place, async-in-place         mlp: parameters are the servers' memory, and gradients are
                                          written where servers read them
    paddle sync, ...                      with a server of Paddle 1.8.5's; paddle local: as alone

Paddle needs a Python 3.7 of its own: python3.7 -m venv DIR; DIR/bin/pip install
paddlepaddle==1.8.5 'protobuf<3.21'; then --paddle DIR/bin/python. Without it, that is said, and the
rest runs. A run does not count if a worker's last loss is more than half of that of a model that
guesses, or if there are rows of its batches that training with a table of tutti's has not changed.
It is said why one does not count, and the exit code is 1 then.

    ctr_vs_paddle.py [--models ctr mlp] [--rounds 5] [--steps 300] [--servers thread]
                     [--paddle PYTHON] [--json FILE]
"""

import os

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
os.environ.update(ONE_THREAD)

import argparse
import contextlib
import json
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "examples" / "ctr"))
sys.path.append(str(REPOSITORY / "build" / "release" / "python"))

from model import MLP

IDS, DIM, FIELDS, NUMBERS, BATCHES, WARM_UP = 1_000_000, 16, 26, 13, 16, 20
LR = 0.1
LABELS = {"ctr": 2, "mlp": 10}
OWN = {"ctr": ("alone", "compute", "async", "sync", "half-async", "geo"),
       "mlp": ("alone", "async", "async-in-place", "sync", "sync-in-place")}
PADDLE = {"ctr": ("local", "async", "sync", "half-async", "geo"), "mlp": ("local", "async", "sync")}
LIMIT = 300  # seconds a run


# ------------------------------------------------------------------------------------- a worker


def batches_of(model, rank):
    """As paddle_ctr.py has them."""
    random = np.random.RandomState(rank)
    for _ in range(BATCHES):
        if model == "ctr":
            ids = random.randint(0, IDS, (512, FIELDS)).astype(np.int64)
            labels = ids[:, 0] % 2
            numbers = random.rand(512, NUMBERS).astype(np.float32)
            numbers += 2 * labels[:, None].astype(np.float32)
        else:
            ids, labels = None, random.randint(0, 10, 64)
            numbers = random.rand(64, 784).astype(np.float32)
            numbers[np.arange(64), labels] += 8
        yield ids, numbers, labels


def softmax_loss(logits, labels):
    """The mean loss, and its gradient."""
    g = np.exp(logits - logits.max(axis=1, keepdims=True))
    g /= g.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -float(np.mean(np.log(g[rows, labels])))
    g[rows, labels] -= 1
    g /= len(labels)
    return loss, g


class ArrayTable:
    """A table in this process' memory, its rows at their ids."""

    def __init__(self):
        self.rows = np.random.default_rng(0).uniform(-0.01, 0.01, (IDS, DIM)).astype(np.float32)

    def lookup(self, ids):
        return self.rows[ids]

    def push(self, ids, gradients):
        """Plain SGD, of each id once."""
        order = np.argsort(ids, axis=None, kind="stable")
        ids = ids.ravel()[order]
        first = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
        sums = np.add.reduceat(gradients.reshape(-1, DIM)[order], first)
        self.rows[ids[first]] -= np.float32(LR) * sums


class ConstantRows:
    def __init__(self):
        self.rows = np.full((512, FIELDS, DIM), 0.01, np.float32)

    def lookup(self, ids):
        return self.rows

    def push(self, ids, gradients):
        pass


class OwnParameters:
    """Parameters in this process' memory."""

    def __init__(self, parameters):
        self.parameters = parameters

    def pull(self):
        pass

    def push(self, gradients):
        for name, gradient in gradients.items():
            gradient *= np.float32(LR)
            self.parameters[name] -= gradient


class InPlace:
    """Dense parameters where the servers have them, and gradients where these read them."""

    def __init__(self, dense):
        self.push, self.gradients = dense.push, dense.gradients

    def pull(self):
        pass


def make_net(model):
    random = np.random.default_rng(0)
    if model == "ctr":
        return MLP([FIELDS * DIM, NUMBERS], [128, 64, 2], random)
    return MLP([784], [1024, 1024, 10], random)


def one_step(model, net, table, dense, batch):
    ids, numbers, labels = batch
    dense.pull()
    if model == "mlp":
        loss, g = softmax_loss(net.forward(numbers), labels)
        dense.push(net.backward(g, dense.gradients() if isinstance(dense, InPlace) else None)[0])
        return loss
    rows = table.lookup(ids)
    loss, g = softmax_loss(net.forward(rows.reshape(len(rows), -1), numbers), labels)
    gradients, sums = net.backward(g)
    table.push(ids, (sums @ net.parameters["deep.0.0"].T).reshape(rows.shape))
    dense.push(gradients)
    return loss


def train(model, net, table, dense, rank, steps, meet, end_step=lambda: None):
    """The steps a second of this worker, the last loss, and the share of rows that changed."""
    batches = list(batches_of(model, rank))
    rows = table.lookup(batches[0][0]).copy() if model == "ctr" else None
    for step in range(-WARM_UP, steps):
        if step == 0:
            meet()
            start = time.perf_counter()
        loss = one_step(model, net, table, dense, batches[step % BATCHES])
        end_step()
    result = {"steps_per_s": steps / (time.perf_counter() - start), "loss": loss}
    meet()
    if model == "ctr":
        result["changed"] = float(np.mean(np.any(table.lookup(batches[0][0]) != rows, axis=-1)))
    return result


def own_worker(mode, model, steps, servers):
    """A rank of tutti run: of a server that is none, it is one of the workers; they print JSON."""
    import tutti

    net = make_net(model)
    if mode in ("alone", "compute"):
        ranks = tutti.Communicator()
        table = ConstantRows() if mode == "compute" else ArrayTable() if model == "ctr" else None
        result = train(model, net, table, OwnParameters(net.parameters), ranks.global_rank, steps,
                       ranks.barrier)
        ranks.barrier()
        print(json.dumps(result), flush=True)
        return
    from tutti import ps

    rule = ps.Sgd(lr=LR)
    table = ps.Embedding("emb", DIM, optimizer=rule, dict_size=IDS)
    in_place = mode.endswith("-in-place")
    dense = ps.Dense(net.parameters, optimizer=rule, shared=in_place)
    modes = {"sync": ps.Sync(), "async": ps.Async(), "half-async": ps.HalfAsync(), "geo": ps.Geo()}
    tables = [table, dense] if model == "ctr" else [dense]
    with ps.start(tables, mode=modes[mode.removesuffix("-in-place")], servers=servers) as fleet:
        if fleet.is_server:
            fleet.serve()
            return

        def meet():
            fleet.flush()
            fleet.barrier()

        if in_place:
            net.parameters = dense.views()
            dense = InPlace(dense)
        result = train(model, net, table, dense, fleet.worker_index, steps, meet, fleet.step)
        print(json.dumps(result), flush=True)
        fleet.barrier()


# ------------------------------------------------------------------------------------------ jobs


class RunFailed(Exception):
    """A run does not count; says why."""


def tail_of(text, lines=8):
    return "\n".join(text.strip().splitlines()[-lines:])


def run_processes(commands, environment):
    """What they print. Raises RunFailed with the last lines of one that fails, or does not end in
    time. None is left behind."""
    with contextlib.ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        processes = [subprocess.Popen(command, env=dict(environment, RANK=str(rank)), text=True,
                                      stdout=subprocess.PIPE, stderr=error, start_new_session=True)
                     for rank, (command, error) in enumerate(zip(commands, errors))]
        why = None
        try:
            outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
        except subprocess.TimeoutExpired:
            why = f"no end within {LIMIT} s"
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for process, error in zip(processes, errors):
            if why or process.returncode:
                error.seek(0)
                raise RunFailed(f"{why or f'exit code {process.returncode}'}\n"
                                + tail_of(error.read()))
        return "".join(outputs)


def run_own(mode, model, arguments):
    workers = [sys.executable, __file__, "--worker", mode, "--models", model, "--steps",
               str(arguments.steps), "--servers", arguments.servers]
    ranks = 2
    if mode not in ("alone", "compute") and arguments.servers != "thread":
        ranks += int(arguments.servers)
    with tempfile.TemporaryDirectory() as logs:
        return run_processes([[str(arguments.tutti), "run", "-n", str(ranks), "--tee", "all",
                               "--log_dir", logs, *workers]], dict(os.environ))


def run_paddle(mode, model, arguments):
    program = [str(REPOSITORY / "benchmarks" / "peers" / "paddle_ctr.py"), mode, model,
               str(arguments.steps)]
    python = str(arguments.paddle)
    if mode == "local":
        return run_processes(2 * [[python, *program]], dict(os.environ))
    with tempfile.TemporaryDirectory() as logs:
        def logged():
            return "".join(path.read_text() for path in pathlib.Path(logs).glob("worker*"))

        try:
            run_processes([[python, "-m", "paddle.distributed.launch_ps", "--server_num", "1",
                            "--worker_num", "2", "--start_port", str(20000 + os.getpid() % 20000),
                            "--log_dir", logs, *program]], dict(os.environ))
        except RunFailed as error:
            raise RunFailed(f"{error}\n{tail_of(logged())}") from None
        return logged()


def steps_of(output, model, side):
    """The mean of the workers' steps a second. Raises RunFailed unless both have trained."""
    lines = [line[line.index("{"):] for line in output.splitlines() if '"steps_per_s"' in line]
    results = [json.loads(line) for line in lines]
    if len(results) != 2:
        raise RunFailed(f"{len(results)} of 2 workers have a result\n{tail_of(output)}")
    most_loss = np.log(LABELS[model]) / 2
    for result in results:
        if not 0 < result["loss"] < most_loss:
            raise RunFailed(f"a loss of {result['loss']:.4f}, not below {most_loss:.4f}")
        if side != "compute" and result.get("changed", 1) < 1:
            raise RunFailed(f"only {result['changed']:.2%} of the rows have changed")
    return statistics.mean(result["steps_per_s"] for result in results)


def measure(model, arguments, write):
    """The medians by side, and whether every run counts."""
    sides = {mode: run_own for mode in OWN[model]}
    if arguments.paddle:
        sides.update({f"paddle {mode}": run_paddle for mode in PADDLE[model]})
    speeds, all_count = {}, True
    for number in range(arguments.rounds):
        for side, run in sides.items():
            speed = why = None
            try:
                speed = steps_of(run(side.removeprefix("paddle "), model, arguments), model, side)
                speeds.setdefault(side, []).append(speed)
            except RunFailed as error:
                why, all_count = str(error), False
            write({"kind": "run", "model": model, "side": side, "round": number,
                   "steps_per_s": speed, "failed": why})
            print(f"round {number}  {model}  {side:18}  "
                  + (f"FAILED: {why}" if why else f"{speed:7.1f} steps/s"), flush=True)
    return {side: statistics.median(values) for side, values in speeds.items()}, all_count


def report(model, medians, write):
    print(f"\n{model:20}  steps/s  of alone  times Paddle's")
    for side, speed in medians.items():
        alone = medians.get("paddle local" if side.startswith("paddle") else "alone")
        peer = medians.get("paddle local" if side == "alone" else f"paddle {side}")
        print(f"{side:20}  {speed:7.1f}  {speed / alone if alone else float('nan'):8.2f}"
              + (f"  {speed / peer:14.2f}" if peer else ""))
        write({"kind": "median", "model": model, "side": side, "steps_per_s": speed,
               "of_alone": alone and speed / alone, "times_paddle": peer and speed / peer})


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=("ctr", "mlp"), default=["ctr", "mlp"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--servers", default="thread", help="thread, or a number of processes")
    parser.add_argument("--paddle", type=pathlib.Path, help="the Python that has Paddle 1.8.5")
    parser.add_argument("--tutti", type=pathlib.Path,
                        default=REPOSITORY / "build" / "release" / "bin" / "tutti")
    parser.add_argument("--json", type=pathlib.Path, help="JSON Lines: each run, each median")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if arguments.worker:
        servers = arguments.servers if arguments.servers == "thread" else int(arguments.servers)
        return own_worker(arguments.worker, arguments.models[0], arguments.steps, servers)
    if not arguments.paddle:
        print("WITHOUT PADDLE: --paddle does not say which Python has it", flush=True)
    elif subprocess.run([arguments.paddle, "-c", "import paddle.fluid"], check=False,
                        capture_output=True).returncode:
        print(f"WITHOUT PADDLE: {arguments.paddle} cannot import paddle.fluid", flush=True)
        arguments.paddle = None
    lines = open(arguments.json, "w") if arguments.json else None

    def write(record):
        if lines:
            print(json.dumps(record), file=lines, flush=True)

    all_count = True
    for model in arguments.models:
        medians, counts = measure(model, arguments, write)
        report(model, medians, write)
        all_count = all_count and counts
    return 0 if all_count else 1


if __name__ == "__main__":
    sys.exit(main())
