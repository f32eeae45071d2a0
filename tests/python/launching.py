"""Runs a function on ranks: forked, spawned, from a fork server, or under mpiexec."""

import importlib
import multiprocessing
import os
import pathlib
import pickle
import random
import socket
import subprocess
import sys
import tempfile
import time
import traceback

import tutti

LIMIT = 100  # seconds for one run; every wait inside ends earlier
MPIEXEC = ["mpiexec", "--oversubscribe", "--bind-to", "none"]
HERE = str(pathlib.Path(__file__).parent)


def free_ports(count):
    """Ports of this machine that nobody uses; outside of those that connections get by themselves, so
    that none of another test takes one first."""
    first_of_connections = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = []
    assert first_of_connections > 2000, "connections take ports from there on by themselves: none is left"
    candidates = range(min(10000, first_of_connections - 1000), first_of_connections)
    for port in random.sample(candidates, min(1000, len(candidates))):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError(f"no {count} ports are free")


def free_endpoints(count):
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


class Place:
    """Where a rank finds itself: how it joins the others."""

    def __init__(self, rank=None, ranks=None, ticket=None):
        self.rank, self.ranks, self._ticket = rank, ranks, ticket

    def communicator(self, **options):
        if self._ticket is None:
            made = tutti.Communicator(**options)
        else:
            made = tutti.Communicator(self.rank, self.ranks, self._ticket, **options)
        self.rank, self.ranks = made.global_rank, made.world_size
        return made

    def dist_opt(self, sgd, **options):
        made = tutti.opt.DistOpt(sgd, self._ticket, self._ticket and self.rank,
                                 self._ticket and self.ranks, **options)
        self.rank, self.ranks = made.global_rank, made.world_size
        return made


def _run_rank(place, body, arguments):
    """("value", what it returned) or ("error", the exception, its traceback)."""
    try:
        return ("value", body(place, *arguments))
    except BaseException as error:  # KeyboardInterrupt, too, is an outcome
        return ("error", _that_travels(error), traceback.format_exc())


def _that_travels(error):
    """pytest's own, of a raises() that nothing was raised in, cannot be pickled."""
    try:
        pickle.dumps(error)
    except Exception:
        return AssertionError(str(error))
    return error


def _send_outcome(connection, place, body, arguments):
    connection.send(_run_rank(place, body, arguments))
    connection.close()


def _run_multiprocessing(body, ranks, launch, arguments):
    """The outcomes, and the exit codes."""
    context = multiprocessing.get_context(launch)
    ticket = tutti.NcclIdHolder()
    processes, ends = [], []
    for rank in range(ranks):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_send_outcome,
                                  args=(theirs, Place(rank, ranks, ticket), body, arguments))
        process.start()
        theirs.close()
        processes.append(process)
        ends.append(ours)
    deadline = time.monotonic() + LIMIT
    outcomes = []
    try:
        for rank, end in enumerate(ends):
            assert end.poll(max(0.0, deadline - time.monotonic())), f"rank {rank} does not end"
            try:
                outcomes.append(end.recv())
            except EOFError:  # it was killed
                outcomes.append(None)
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            assert not process.is_alive(), "a rank does not exit"
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
    return outcomes, [process.exitcode for process in processes]


def _run_mpiexec(body, ranks, arguments):
    with tempfile.TemporaryDirectory() as folder:
        job = pathlib.Path(folder, "job")
        job.write_bytes(pickle.dumps((body.__module__, body.__name__, arguments)))
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(
            [HERE, *filter(None, [os.environ.get("PYTHONPATH")])]))
        done = subprocess.run([*MPIEXEC, "-n", str(ranks), sys.executable, __file__, folder],
                              env=environment, timeout=LIMIT, capture_output=True, text=True)
        outcomes = [pickle.loads(pathlib.Path(folder, str(rank)).read_bytes())
                    for rank in range(ranks) if pathlib.Path(folder, str(rank)).exists()]
        assert len(outcomes) == ranks, done.stdout + done.stderr
        return outcomes, [done.returncode]


def outcomes_of(body, ranks, launch, *arguments):
    """What _run_rank() gave on each rank, None for a rank that was killed; and the exit codes, of
    mpiexec one for all ranks."""
    if launch == "mpi":
        return _run_mpiexec(body, ranks, arguments)
    return _run_multiprocessing(body, ranks, launch, arguments)


def run(body, ranks, launch, *arguments, finalises=True):
    """Calls body(place, *arguments) on every rank; what it returned, by rank. All must end well,
    their interpreters too; without `finalises` mpiexec may complain of ranks that leave MPI as it
    is, which they do after a loss."""
    outcomes, codes = outcomes_of(body, ranks, launch, *arguments)
    for rank, outcome in enumerate(outcomes):
        assert outcome is not None, f"rank {rank} was killed"
        assert outcome[0] == "value", f"rank {rank}: {outcome[-1]}"
    assert not any(codes) or not finalises, f"exit codes {codes}"
    return [outcome[1] for outcome in outcomes]


def _main(folder):
    module, name, arguments = pickle.loads(pathlib.Path(folder, "job").read_bytes())
    outcome = _run_rank(Place(), getattr(importlib.import_module(module), name), arguments)
    rank, ranks = (os.environ[f"OMPI_COMM_WORLD_{name}"] for name in ("RANK", "SIZE"))
    part = pathlib.Path(folder, f"{rank}.part")
    part.write_bytes(pickle.dumps(outcome))
    part.rename(part.with_suffix(""))
    # After a loss between hosts MPI is not finalised, and mpiexec ends who is still there.
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not all(
            pathlib.Path(folder, str(other)).exists() for other in range(int(ranks))):
        time.sleep(0.01)


if __name__ == "__main__":
    _main(sys.argv[1])
