"""The part of tutti.torch that is compiled against PyTorch, which `python3 -m tutti.torch.build` has
done before."""

import os
import pathlib
import subprocess
import sys
import threading
from inspect import signature

import pytest

import launching
from torch_group import (  # noqa: F401 - ranks is a fixture
    Net,
    batch,
    both_heads,
    dist,
    in_group,
    ranks,
    torch,
    trained_alone,
)
from tutti.torch import _compiled, _memory, _work

DistributedDataParallel = torch.nn.parallel.DistributedDataParallel

compiled = pytest.mark.skipif(_compiled.c10d is None, reason="tutti.torch.build was not run")
too_old = not hasattr(torch._C._distributed_c10d.Backend, "allocate_tensor")


def is_shared(address):
    """Whether what lies there is memory of several processes."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, rights, *_ = line.split()
            begin, end = (int(number, 16) for number in span.split("-"))
            if begin <= address < end:
                return rights.endswith("s")
    raise AssertionError("no such memory")


def train(rank, ranks, **options):
    """The parameters that steps with DistributedDataParallel lead to, and which of its buckets lie in
    shared memory."""
    seen = []

    def hook(_, bucket):
        buffer = bucket.buffer()
        seen.append(is_shared(buffer.data_ptr()))
        future = dist.all_reduce(buffer, async_op=True).get_future()
        return future.then(lambda done: done.value()[0].div_(ranks))

    net = DistributedDataParallel(Net(), bucket_cap_mb=0.001, **options)
    net.register_comm_hook(None, hook)
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        net(batch(step, rank)).square().mean().backward()
        sgd.step()
    for ours, theirs in zip(net.parameters(), trained_alone(ranks, both_heads)):
        torch.testing.assert_close(ours, theirs)
    return set(seen)


@compiled
def test_buckets_lie_in_shared_memory(ranks, monkeypatch):
    assert ranks(train, 3) == [{True}] * 3
    monkeypatch.setenv("DDP_DISABLE_COMM_MEM", "1")
    assert ranks(train, 2) == [{False}] * 2


def train_lazily(rank, ranks):
    return train(rank, ranks, lazy_bucket_allocation=True)


@compiled
@pytest.mark.skipif("lazy_bucket_allocation" not in signature(DistributedDataParallel).parameters,
                    reason="this PyTorch allocates all buckets at once")
def test_buckets_that_are_allocated_in_backward_lie_elsewhere(ranks):
    assert ranks(train_lazily, 2) == [{False}] * 2


def test_buckets_lie_elsewhere_where_nothing_is_compiled(ranks, monkeypatch):
    monkeypatch.setattr(_memory, "c10d", None)
    assert ranks(train, 2) == [{False}] * 2


def train_where_one_rank_has_nothing_compiled(place, path):
    if place.rank == 1:
        _memory.c10d = None
    return in_group(place, path, train)


@compiled
def test_buckets_lie_elsewhere_where_one_rank_has_nothing_compiled(tmp_path):
    found = launching.run(train_where_one_rank_has_nothing_compiled, 2, "fork", str(tmp_path / "store"))
    assert found == [{False}] * 2


def allocate_while_something_is_under_way(rank, ranks):
    """Memory is allocated in the order of the calls, among what is under way."""
    group = dist.distributed_c10d._get_default_group()
    memory = _memory.for_buckets(group.communicator, group._lane)
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(20)]
    tensor = memory.allocate_tensor(70, dtype=torch.float64, device=torch.device("cpu"))
    assert tensor.shape == (70,) and tensor.dtype == torch.float64 and is_shared(tensor.data_ptr())
    assert all(work.is_completed() for work in works)
    other = memory.allocate_tensor(2, dtype=torch.float8_e5m2, device=torch.device("cpu"))
    assert other.dtype == torch.float8_e5m2 and not is_shared(other.data_ptr())
    dist.all_reduce(tensor.fill_(rank))
    return tensor.tolist() == [sum(range(ranks))] * 70


@compiled
def test_memory_is_allocated_in_the_order_of_the_calls(ranks):
    assert ranks(allocate_while_something_is_under_way, 3) == [True] * 3


def show(rank, ranks):
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(torch.ones(2, 3), async_op=True).wait()
        dist.all_gather([torch.ones(4) for _ in range(ranks)], torch.ones(4))
    return [(event.name, event.is_async, event.input_shapes) for event in profile.events()
            if event.name.startswith("tutti:")]


@compiled
def test_the_profiler_shows_shapes(ranks):
    assert ranks(show, 2) == [[("tutti:all_reduce", True, [[2, 3]]),
                               ("tutti:all_gather", True, [[4]])]] * 2


@compiled
def test_what_is_shown_ends_on_any_thread_and_not_where_nobody_looks():
    with torch.profiler.profile() as profile:
        thread = threading.Thread(target=_work._begin("tutti:x", []))
        thread.start()
        thread.join()
        _work._begin("tutti:y", [])()
    first, second = profile.events()
    assert (first.name, second.name) == ("tutti:x", "tutti:y")
    assert first.time_range.end <= second.time_range.start
    _work._begin("tutti:x", [])()


def test_what_cannot_be_loaded_is_told(tmp_path):
    path = tmp_path / _compiled.where().name
    assert _compiled.load(path) is None
    path.write_bytes(b"for another machine")
    with pytest.warns(RuntimeWarning, match=f"does without {path}"):
        assert _compiled.load(path) is None


def test_a_home_that_is_not_this_user_s_is_no_error(monkeypatch):
    """As in a container whose user is not root, but whose HOME is /root."""
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(pathlib.Path, "stat", refuse)
    assert _compiled.load(_compiled.where()) is None


def build(tmp_path, **variables):
    return subprocess.run([sys.executable, "-m", "tutti.torch.build"], capture_output=True, text=True,
                          env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), **variables})


@pytest.mark.skipif(too_old, reason="this PyTorch is refused")
def test_a_compiler_that_fails_is_shown_and_leaves_nothing(tmp_path):
    run = build(tmp_path, CXX="no-such-compiler")
    assert run.returncode == 1 and "there is no C++ compiler 'no-such-compiler'" in run.stderr
    run = build(tmp_path, CXX="c++ --no-such-option")
    assert run.returncode == 1 and "--no-such-option -shared" in run.stderr
    assert "Traceback" not in run.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.skipif(not too_old, reason="this PyTorch has what it takes")
def test_an_old_version_of_pytorch_is_refused(tmp_path):
    run = build(tmp_path)
    assert run.returncode == 1 and "asks no backend for memory" in run.stderr
    assert _compiled.c10d is None
