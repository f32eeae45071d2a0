"""tutti.distributed.launcher: what comes back from ranks, how failures are told, and that no rank is
left behind, whatever ends."""

import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import launching
import tutti
import tutti.distributed as dist
from tutti.distributed import _launcher

LIMIT = 60  # seconds: what a busy machine may take for what takes none


def wait_until(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def summing(first, *, second):
    assert dist.is_distributed()
    array = numpy.full(3, dist.get_rank() + 1)
    total = dist.functional.all_reduce_sum(array)
    return dist.get_rank(), dist.get_world_size(), first + second, total.tolist()


@dist.launcher(n_gpus=2, start_method="spawn")
def decorated(value):
    """What it is for."""
    return value, dist.get_rank()


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_results_come_in_the_order_of_ranks(start_method, ranks):
    run = dist.launcher(summing, n_gpus=ranks, start_method=start_method)
    total = [ranks * (ranks + 1) // 2] * 3
    assert run(1, second=2) == [(rank, ranks, 3, total) for rank in range(ranks)]
    assert run(1, second=3)[0][2] == 4  # again
    assert not dist.is_distributed() and (dist.get_rank(), dist.get_world_size()) == (0, 1)


def test_a_decorated_function(monkeypatch):
    assert decorated("x") == [("x", 0), ("x", 1)]
    assert decorated.__name__ == "decorated" and decorated.__doc__ == "What it is for."
    assert pickle.loads(pickle.dumps(decorated)) is decorated

    monkeypatch.setattr(_launcher, "_default_ranks", lambda: 2)  # a machine may have many cores, or GPUs

    @dist.launcher
    def everywhere():  # a closure, which a fork has
        return decorated.__name__, numpy.arange(1_000_000)

    results = everywhere()
    assert len(results) == 2
    assert results[-1][0] == "decorated" and results[-1][1].sum() == 499999500000


def cores_of_rank():
    return os.environ["OMP_NUM_THREADS"]


def test_ranks_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert dist.launcher(cores_of_rank, n_gpus=2)() == [str(max(1, cores // 2))] * 2
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert dist.launcher(cores_of_rank, n_gpus=2)() == ["7", "7"]


def train_alone(place):
    opt = tutti.opt.DistOpt()
    assert (opt.global_rank, opt.world_size) == (dist.get_rank(), dist.get_world_size())


def test_a_plain_communicator_joins_the_other_ranks_too():
    dist.launcher(train_alone, n_gpus=2)(None)


# --- Failures -------------------------------------------------------------------------------------


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("not to be pickled")


def run_out():
    raise ValueError("out of data")


def failing(how, folder):
    pathlib.Path(folder, str(os.getpid())).touch()
    if dist.get_rank() != 1:
        dist.group_barrier()
        time.sleep(LIMIT)
    wait_until(lambda: len(os.listdir(folder)) == dist.get_world_size())
    how()


def exit_with_seven():
    sys.exit(7)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def raise_unpicklable():
    raise Unpicklable("as it is")


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("how, reason, exitcode, cause", [
    (run_out, "ValueError: out of data", 1, ValueError),
    (exit_with_seven, "SystemExit: 7", 7, SystemExit),
    (die, "it was killed by SIGKILL", -signal.SIGKILL, type(None)),
    (raise_unpicklable, ".*Unpicklable: as it is", 1, type(None)),
])
def test_one_failure_ends_all(start_method, how, reason, exitcode, cause, tmp_path):
    start = time.monotonic()
    with pytest.raises(dist.RankFailed, match=f"^rank 1 failed: {reason}") as caught:
        dist.launcher(failing, n_gpus=3, start_method=start_method)(how, str(tmp_path))
    assert time.monotonic() - start < LIMIT / 2  # for which the others would sleep
    failure = caught.value
    assert failure.rank == 1 and failure.exitcode == exitcode
    assert isinstance(failure.__cause__, cause)
    assert how is die or failure.traceback.splitlines()[1].endswith(", in failing")
    assert how is die or f", in {how.__name__}\n" in str(failure)
    assert len(os.listdir(tmp_path)) == 3
    assert not any(is_running(pid) for pid in os.listdir(tmp_path))


def held_back(folder):
    mine = pathlib.Path(folder, str(dist.get_rank()))
    mine.write_text(str(os.getpid()))
    dist.group_barrier()
    if dist.get_rank() == 0:
        dist.group_barrier()
    dist.WORLD.communicator.abort("out of data")
    other = pathlib.Path(folder, "0").read_text()
    wait_until(lambda: not is_running(other))
    raise ValueError("out of data")


def test_a_cause_that_comes_after_its_consequences(monkeypatch, tmp_path):
    monkeypatch.setattr("tutti.distributed._launcher._GRACE", 0.0)
    monkeypatch.setattr("tutti.distributed._launcher._PATIENCE", float(LIMIT), raising=False)
    with pytest.raises(dist.RankFailed, match="^rank 1 failed: ValueError: out of data"):
        dist.launcher(held_back, n_gpus=2)(str(tmp_path))


def without_result():
    return threading.Lock() if dist.get_rank() == 1 else None


def test_a_result_that_cannot_be_sent():
    with pytest.raises(dist.RankFailed, match="(?s)^rank 1 failed: TypeError: cannot pickle .*lock"):
        dist.launcher(without_result, n_gpus=2)()


def crash_at_the_end():
    if dist.get_rank() == 1:
        sys.stdout = type("Crash", (), {"flush": lambda self: os._exit(7)})()


def test_a_crash_after_the_result():
    with pytest.raises(dist.RankFailed, match="^rank 1 failed: its process ended with exit code 7"):
        dist.launcher(crash_at_the_end, n_gpus=2)()


def leave_a_child(folder):
    if dist.get_rank() == 1:
        child = os.fork()
        if child == 0:
            signal.pause()
        pathlib.Path(folder, "child").write_text(str(child))
        os._exit(9)
    dist.group_barrier()


def test_a_rank_whose_child_lives_on_has_ended_all_the_same(tmp_path):
    try:
        with pytest.raises(dist.RankFailed, match="^rank 1 failed: .* exit code 9"):
            dist.launcher(leave_a_child, n_gpus=2)(str(tmp_path))
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


LONG = """if True:
    import os, pathlib, sys, time
    import tutti.distributed as dist
    @dist.launcher(n_gpus=3)
    def main():
        pathlib.Path(sys.argv[1], str(os.getpid())).touch()
        if dist.get_rank() == 0:
            time.sleep(1000)
        dist.group_barrier()
    main()
    """


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_its_parent(end, tmp_path):
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + LONG
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)],
                          stderr=subprocess.PIPE) as parent:
        wait_until(lambda: len(os.listdir(tmp_path)) == 3)
        parent.send_signal(end)
        error = parent.communicate(timeout=LIMIT)[1]
    assert parent.returncode == -end
    assert (b"KeyboardInterrupt" in error) == (end == signal.SIGINT)
    wait_until(lambda: not any(is_running(pid) for pid in os.listdir(tmp_path)))


# --- Several launchers, and launchers around this one ---------------------------------------------


def half(first, port, fails, connection):
    run = dist.launcher(out_of if fails else summing, n_gpus=2, world_size=4, rank_start=first,
                        master_ip="localhost", port=port)
    try:
        connection.send(run(1, second=2))
    except dist.RankFailed as error:
        connection.send((error.rank, str(error)))


def out_of(first, *, second):
    if dist.get_rank() == 3:
        run_out()
    dist.group_barrier()


@pytest.mark.parametrize("fails", [False, True])
def test_two_launchers_of_one_world(fails):
    port = launching.free_ports(1)[0]
    ends, processes = [], []
    for first in (0, 2):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=half, args=(first, port, fails, theirs))
        process.start()
        ends.append(ours)
        processes.append(process)
    outcomes = [end.recv() if end.poll(LIMIT) else None for end in ends]
    for process in processes:
        process.join(LIMIT)
    if not fails:
        assert outcomes[0] + outcomes[1] == [(rank, 4, 3, [10] * 3) for rank in range(4)]
        return
    assert outcomes[1][0] == 3 and "ValueError: out of data" in outcomes[1][1]
    assert outcomes[0][0] in (0, 1) and "lost rank 3: ValueError: out of data" in outcomes[0][1]


def test_what_is_refused():
    for options, message in [
            (dict(n_gpus=0), "n_gpus is 0"), (dict(world_size=-1), "world_size is -1"),
            (dict(rank_start=1), "rank_start is 1, and world_size None"),
            (dict(start_method="forkserver"), "start_method is 'forkserver'"),
            (dict(n_gpus=2, world_size=1), "world_size is 1, but rank_start is 0 and n_gpus 2"),
            (dict(n_gpus=1, world_size=2), "port is 0"),
            (dict(n_gpus=1, world_size=2, port=5, master_ip="192.0.2.1"),
             "master_ip is '192.0.2.1'.*tutti run --ips"),
            (dict(n_gpus=2, timeout=-1), "rank . failed: .*timeout is -1")]:
        with pytest.raises(tutti.Error, match=message):
            dist.launcher(cores_of_rank, **options)()
    with pytest.raises(TypeError, match="func is a int"):
        dist.launcher(5)


def under_mpiexec(place):
    ranks = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    for options, message in [(dict(n_gpus=ranks + 1), "n_gpus is"), (dict(world_size=7), "world_si"),
                             (dict(n_gpus=ranks, rank_start=1, world_size=ranks), "rank_start is")]:
        with pytest.raises(tutti.InvalidArgument, match=message):
            dist.launcher(os.getpid, **options)()
    pids = dist.launcher(os.getpid, n_gpus=ranks)()
    assert pids[dist.get_rank()] == os.getpid() and len(set(pids)) == ranks
    run = dist.launcher(summing)
    assert run(1, second=2)[-1] == (ranks - 1, ranks, 3, [ranks * (ranks + 1) // 2] * 3)
    with pytest.raises(tutti.InvalidArgument, match="init_process_group is called once"):
        dist.init_process_group("localhost", 0, ranks, dist.get_rank())
    if ranks > 1:
        with pytest.raises(ValueError if dist.get_rank() == 1 else tutti.PeerLost,
                           match="out of data"):
            dist.launcher(run_out_on_one)()


def run_out_on_one():
    if dist.get_rank() == 1:
        run_out()
    dist.group_barrier()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_under_mpiexec_it_joins_what_is_there(ranks):
    launching.run(under_mpiexec, ranks, "mpi", finalises=False)


STARTED = """if True:
    import sys
    import numpy
    import tutti.distributed as dist
    @dist.launcher(n_gpus=2)
    def main():
        if sys.argv[1:] == ["fail"] and dist.get_rank() == 1:
            raise ValueError("out of data")
        return dist.functional.all_gather(numpy.array([dist.get_rank()])).tolist()
    if not sys.argv[1:]:  # nothing has been joined yet
        assert dist.is_distributed() and dist.get_world_size() == 2
    results = main()
    print("results", results)
    """


def test_after_a_communicator_of_one_it_starts_ranks_all_the_same():
    """Open MPI leaves variables behind with a process that nothing has started."""
    code = STARTED.replace("@dist", "tutti.Communicator(); assert tutti.launched_by() == ''\n    @dist")
    result = subprocess.run([sys.executable, "-c", code.replace("import sys", "import sys, tutti"), "ranks"],
                            capture_output=True, text=True, timeout=LIMIT)
    assert result.stdout == "results [[0, 1], [0, 1]]\n", result.stderr


def test_under_tutti_run_it_joins_what_is_there(tmp_path):
    (tmp_path / "script.py").write_text(STARTED)

    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "tutti.run", "-n", "2", "script.py", *arguments],
                              cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)

    done = run()
    assert done.returncode == 0 and done.stdout == "results [[0, 1], [0, 1]]\n", done.stderr
    done = run("fail")
    assert done.returncode == 1 and "ValueError: out of data" in done.stderr
    assert "rank 1" in done.stderr


def test_there_is_no_backend_to_choose():
    for choice in ({"backend": "nccl"}, {"device_type": "gpu"}):
        (name, value), = choice.items()
        for call in (lambda: dist.launcher(**choice), lambda: dist.launcher(print, **choice),
                     lambda: dist.init_process_group("localhost", 5, 2, 0, **choice)):
            with pytest.raises(tutti.BackendUnavailable, match=f"{name}='{value}' is not there.*out"):
                call()
    assert dist.launcher(dist.get_rank, 2, None, 0, "localhost", 0, "xpu", "auto")() == [0, 1]
