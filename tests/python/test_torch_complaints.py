"""What users of torch.distributed's backends, and of Horovod, complain of: a test for each."""

import os
import pathlib
import subprocess
import sys
import textwrap
import time

import pytest

import launching
from torch_group import Net, batch, begin, dist, ranks, torch  # noqa: F401 - a fixture
import tutti.torch
from tutti.torch import broadcast_parameters

DistributedDataParallel = torch.nn.parallel.DistributedDataParallel


def step(net, number, rank):
    net(batch(number, rank)).square().mean().backward()


# --- Hangs without a culprit ------------------------------------------------------------------------


def wait_for_a_rank(place, path):
    begin(place, path, seconds=4)
    net = DistributedDataParallel(Net())
    step(net, 0, place.rank)
    told = [pathlib.Path(f"{path}.told.{rank}") for rank in (0, 2)]
    if place.rank == 1:  # reads a slow disk, say
        until = time.monotonic() + 30
        while not all(one.exists() for one in told) and time.monotonic() < until:
            time.sleep(0.01)
        return ""
    start = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        step(net, 1, place.rank)
    pathlib.Path(f"{path}.told.{place.rank}").touch()
    assert time.monotonic() - start < 7
    return str(caught.value)


def test_a_rank_that_does_not_come_is_named(tmp_path):
    told = launching.run(wait_for_a_rank, 3, "fork", str(tmp_path / "store"))
    assert "rank 1: did not answer within 4.0 s" in told[0] and "rank 1:" in told[2]
    assert "rank 0" not in told[2]


# --- Unused parameters ------------------------------------------------------------------------------


def use_one_head(rank, ranks):
    """PyTorch tells which are missing, before anybody waits for them."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
    dist.set_debug_level_from_env()
    net = DistributedDataParallel(Net())
    net(batch(0, rank), (0,)).square().mean().backward()
    with pytest.raises(RuntimeError, match=r"find_unused_parameters=True(.|\n)*heads\.1\.weight"):
        net(batch(1, rank), (0,))


def test_parameters_that_are_not_used_are_named(ranks):
    ranks(use_one_head, 2)


# --- Uneven batches ---------------------------------------------------------------------------------


def run_out_of_data(place, path):
    begin(place, path)
    net = DistributedDataParallel(Net())
    for number in range(3):
        if place.rank == 1 and number == 2:
            dist.destroy_process_group()
            return ""
        if number < 2:
            step(net, number, place.rank)
    with pytest.raises(RuntimeError) as caught:
        step(net, 2, place.rank)
    return str(caught.value)


def test_who_has_run_out_of_data_is_named(tmp_path):
    told = launching.run(run_out_of_data, 2, "fork", str(tmp_path / "store"))
    assert "lost rank 1: it has destroyed its" in told[0]


# --- Errors that are swallowed ----------------------------------------------------------------------


def forget_a_work(rank, ranks):
    """What failed while nobody waited for it ends the next operation."""
    dist.all_reduce(torch.ones(3 + rank), async_op=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"all_reduce\(f32, count 3, sum\).*count 4, sum"):
            dist.barrier()


def test_an_error_that_nobody_has_waited_for_is_raised_later(ranks):
    ranks(forget_a_work, 2)


def fail_in_a_step(rank, folder):
    import datetime

    import tutti.torch  # noqa: F401 - registers the backend

    dist.init_process_group("tutti", store=dist.FileStore(f"{folder}/store", 2), rank=rank,
                            world_size=2, timeout=datetime.timedelta(seconds=60))
    net = DistributedDataParallel(Net())
    step(net, 0, rank)
    if rank == 1:
        raise ValueError("no such image: 17.png")
    try:
        step(net, 1, rank)
    except RuntimeError as error:
        print("told:", error)
        dist.destroy_process_group()


def on_their_own(tmp_path, call, ranks=2):
    """call(rank, folder) as what scripts of their own do; what they write, and their exit codes."""
    tests = pathlib.Path(__file__).parent
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(tests)!r})
        from {pathlib.Path(__file__).stem} import {call.__name__} as call
        call(int(sys.argv[1]), {str(tmp_path)!r})
    """))
    started = [subprocess.Popen([sys.executable, str(script), str(rank)], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True) for rank in range(ranks)]
    try:
        written = [one.communicate(timeout=launching.LIMIT)[0] for one in started]
    finally:
        for one in started:
            one.kill()
    return written, [one.returncode for one in started]


def test_what_has_ended_a_script_is_told_to_the_others(tmp_path):
    written, codes = on_their_own(tmp_path, fail_in_a_step)
    assert codes == [0, 1], written
    assert "lost rank 1: ValueError: no such image: 17.png" in written[0]


# --- A first step with other types ------------------------------------------------------------------


def differ_in_types(rank, ranks):
    net = Net().to(torch.bfloat16) if rank == 1 else Net()
    with pytest.raises(RuntimeError, match="'body.0.weight' .32, 8. float32 on rank 0, but .* bfloat16 on"):
        broadcast_parameters(net)
    with pytest.raises(RuntimeError, match=r"rank 0: broadcast\(f32, .*; rank 1: broadcast\(bf16, "):
        DistributedDataParallel(net)


def test_models_of_different_types_are_refused(ranks):
    ranks(differ_in_types, 2)


def differ_in_memory(rank, ranks):
    """Elements that do not correspond would be averaged."""
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2), torch.nn.Conv2d(4, 1, 2))
    given = r"#0 is '0.weight' .4, 3, 2, 2. float32 on rank 0, but .* float32, in memory by axes 0, 2, 3, 1 on"
    sgd = torch.optim.SGD(net.parameters(), 1.0)
    converted = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 2))
    early = tutti.torch.DistributedOptimizer(torch.optim.SGD(converted.parameters(), 1.0))
    if rank == 1:
        converted.to(memory_format=torch.channels_last)
        net.to(memory_format=torch.channels_last)
    with pytest.raises(tutti.MismatchError, match=given):
        tutti.torch.DistributedOptimizer(sgd, net.named_parameters())
    converted(torch.ones(1, 3, 4, 4)).sum().backward()
    with pytest.raises(tutti.MismatchError, match="in memory by axes 0, 2, 3, 1 on rank 1"):
        early.step()
    broadcast_parameters(net)  # whatever the order in memory
    net.to(memory_format=torch.channels_last)
    same = tutti.torch.DistributedOptimizer(sgd, net.named_parameters())
    same.zero_grad()
    x = torch.arange(48.0).view(1, 3, 4, 4) * (rank + 1)
    net(x).square().sum().backward()
    whole = [one.grad.contiguous() for one in net.parameters()]
    for one in whole:
        dist.all_reduce(one, dist.ReduceOp.AVG)
    same.synchronize()
    for one, other in zip(net.parameters(), whole):
        torch.testing.assert_close(one.grad, other)


def test_models_of_different_orders_in_memory_are_refused(ranks):
    ranks(differ_in_memory, 2)


# --- Processes that are forked after init_process_group() -------------------------------------------


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((8,), float(index)), torch.ones(2) @ torch.ones(2)


def use_in_a_child(other):
    for use in (lambda: dist.all_reduce(torch.ones(3)),
                lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
                lambda: dist.send(torch.ones(3), other),
                lambda: dist.recv(torch.ones(3), other)):
        with pytest.raises(RuntimeError, match="not to a forked child"):
            use()
    dist.destroy_process_group()


def train_with_forked_workers(rank, ranks):
    net = DistributedDataParallel(Net())
    dist.all_reduce(torch.ones(10), async_op=True).wait()  # the group has a thread
    data = torch.utils.data.DataLoader(
        Squares(), 4, num_workers=2, multiprocessing_context="fork",
        sampler=torch.utils.data.DistributedSampler(Squares(), ranks, rank))
    for _ in range(2):
        assert sum(net(images).square().mean().backward() is None for images, _ in data) == 2
    if rank == 0:
        under_way = dist.all_reduce(torch.ones(10), async_op=True)
    child = torch.multiprocessing.get_context("fork").Process(target=use_in_a_child,
                                                             args=(1 - rank,))
    child.start()
    child.join()
    assert child.exitcode == 0
    if rank == 0:
        assert not under_way.is_completed()
        dist.send(torch.ones(1), 1)
        under_way.wait()
    else:
        dist.recv(torch.ones(1), 0)
        dist.all_reduce(torch.ones(10))
    total = torch.ones(1)
    dist.all_reduce(total)  # whatever the children were, and how they ended
    assert total.item() == ranks


def test_processes_may_be_forked_after_init(ranks):
    ranks(train_with_forked_workers, 2)


# --- destroy_process_group() at exit ----------------------------------------------------------------


def leave_without_a_word(rank, folder):
    import datetime

    import tutti.torch  # noqa: F401 - registers the backend

    # A deadline that the test does not wait for.
    dist.init_process_group("tutti", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=3 * launching.LIMIT))
    net = DistributedDataParallel(Net())
    step(net, 0, rank)
    dist.new_group([0, 1])
    if rank == 0:  # the other never comes
        dist.all_reduce(torch.ones(1000), async_op=True)
        dist.irecv(torch.ones(3), 1)


def test_a_script_may_end_without_destroying_its_groups(tmp_path):
    written, codes = on_their_own(tmp_path, leave_without_a_word)
    assert codes == [0, 0], written
