"""How process groups of the backend "tutti" begin and end, on one host and on several."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy
import pytest

import launching
import tutti
from torch_group import Net, batch, begin, dist, torch
from torch_modes import Alone, Given, gradients
from tutti.torch import DistributedOptimizer


def lose_a_rank(place, path, how):
    begin(place, path)
    net = torch.nn.parallel.DistributedDataParallel(Net())
    dist.barrier()
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="rank 1") as caught:
        if how == "ddp":
            net(batch(0, 0)).square().mean().backward()
        elif how == "message":
            dist.recv(torch.empty(1), 1)
        else:
            dist.all_reduce(torch.ones(3))
    return str(caught.value)


@pytest.mark.parametrize("how", ["all_reduce", "message", "ddp"])
def test_a_killed_rank_is_named(tmp_path, how):
    outcomes, _ = launching.outcomes_of(lose_a_rank, 3, "fork", str(tmp_path / "store"), how)
    assert outcomes[1] is None
    for rank in (0, 2):
        assert outcomes[rank][0] == "value", outcomes[rank]
        assert "rank 1" in outcomes[rank][1]


def disagree(place, path):
    begin(place, path)
    with pytest.raises(RuntimeError, match="all_reduce"):
        dist.all_reduce(torch.ones(3 + place.rank))


def test_ranks_that_disagree_are_told(tmp_path):
    launching.run(disagree, 2, "fork", str(tmp_path / "store"))


def begin_twice(place, path):
    kept = dist.FileStore(path, place.ranks)  # noqa: F841 - or one rank's last end removes the other's new file
    for _ in range(2):
        begin(place, path)
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == place.ranks
        dist.destroy_process_group()
    begin(place, path)
    net = Given([(1000, 1000)])
    optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), 1.0))
    net(gradients(0, place.rank, [(1000, 1000)])).backward()
    optimizer.step()
    optimizer.zero_grad()
    # The interpreter ends without destroying it, and with gradients under way.
    if place.rank == 0:
        net(gradients(0, place.rank, [(1000, 1000)])).backward()
    dist.all_reduce(torch.ones(10**6), async_op=True)


def test_a_group_can_be_made_again_and_left(tmp_path):
    launching.run(begin_twice, 2, "spawn", str(tmp_path / "store"))


def leave_at_once(place, path):
    begin(place, path)
    if place.rank == 1:
        time.sleep(0.5)  # so that the group's thread of rank 0 does what follows
    work = dist.all_reduce(torch.ones(3), async_op=True)
    if place.rank == 0:
        work.get_future().then(lambda _: time.sleep(1))
        work.wait()
        dist.group.WORLD.shutdown()  # which old versions leave to the garbage collector
        dist.destroy_process_group()
        return
    work.wait()
    with pytest.raises(tutti.PeerLost, match="lost rank 0: it has destroyed its communicator"):
        dist.all_reduce(torch.ones(3))


def test_who_leaves_when_all_has_ended_gives_nothing_up(tmp_path):
    launching.run(leave_at_once, 2, "fork", str(tmp_path / "store"))


def on_hosts(place, path):
    os.environ["TUTTI_HOST_ID"] = f"host{place.rank}"
    with pytest.raises(tutti.BackendUnavailable, match="several hosts.*mpiexec"):
        begin(place, path)


def test_ranks_on_several_hosts_need_mpi(tmp_path):
    launching.run(on_hosts, 2, "fork", str(tmp_path / "store"))


def by_mpi(place, path):
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ["TUTTI_HOST_ID"] = f"host{rank % 2}"
    place.rank, place.ranks = 2 - rank, 3  # in another order than MPI's
    begin(place, path)
    group = dist.new_group([0, 2])
    tensor = torch.tensor([float(place.rank)])
    if place.rank != 1:
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 2
    got = torch.empty(3)
    dist.all_gather_into_tensor(got, torch.tensor([float(place.rank)]))
    assert got.tolist() == [0, 1, 2]
    dist.send(got, (place.rank + 1) % 3)
    dist.recv(got, (place.rank + 2) % 3)
    for mode, options in (("fp32", {}), ("bf16", {}), ("sparseTopK", {"spars": 0.1})):
        net, shapes = Given([(7, 5), (30,)]), [(7, 5), (30,)]
        optimizer = DistributedOptimizer(torch.optim.SGD(net.parameters(), 1.0), mode=mode, **options)
        alone = Alone(3, mode, **options)
        for step in range(3):
            optimizer.zero_grad()
            net(gradients(step, place.rank, shapes)).backward()
            optimizer.step()
            # The order of additions is MPI's of the ranks, and the hosts'.
            torch.testing.assert_close(
                torch.cat([part.grad.flatten() for part in net.parts]),
                alone.average([gradients(step, r, shapes) for r in range(3)]),
                **({"rtol": 0.02, "atol": 0.01} if mode == "bf16" else {}))
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_on_several_hosts_meet_by_mpi(tmp_path):
    launching.run(by_mpi, 3, "mpi", str(tmp_path / "store"))


def meet_by_launcher(place):
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ["TUTTI_HOST_ID"] = f"host{rank % 2}"
    assert "MASTER_ADDR" not in os.environ and "RANK" not in os.environ
    with pytest.raises(tutti.InvalidArgument, match="world_size is 2, but 3 for mpiexec"):
        dist.init_process_group("tutti", init_method="tutti://", rank=rank, world_size=2)
    for _ in range(2):
        dist.init_process_group("tutti", init_method="tutti://")
        assert (dist.get_rank(), dist.get_world_size()) == (rank, 3)
        total = torch.tensor([10.0**rank])
        dist.all_reduce(total)
        assert total.item() == 111
        pair = dist.new_group([0, 2])
        if rank != 1:
            dist.all_reduce(total, group=pair)
            assert total.item() == 222
        dist.barrier()
        dist.destroy_process_group()


def test_ranks_on_several_hosts_meet_as_their_launcher_says():
    launching.run(meet_by_launcher, 3, "mpi")


def test_the_example_trains_under_mpiexec(tmp_path):
    """On few images in MNIST's format: a digit is a bright row."""
    for part, count in (("train", 640), ("t10k", 100)):
        labels = numpy.arange(count, dtype=numpy.uint8) % 10
        images = numpy.zeros((count, 28, 28), numpy.uint8)
        images[numpy.arange(count), 2 * labels.astype(int)] = 255
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = numpy.array([0x800 + array.ndim, *array.shape], ">u4").tobytes()
            (tmp_path / f"{part}-{name}-ubyte").write_bytes(head + array.tobytes())
    example = pathlib.Path(__file__).parents[2] / "examples" / "torch_mnist.py"
    done = subprocess.run([*launching.MPIEXEC, "-n", "2", sys.executable, str(example), "--data-dir",
                           str(tmp_path), "--batch-size", "16"],
                          timeout=launching.LIMIT, capture_output=True, text=True)
    accuracy = re.findall("evaluation accuracy ([0-9.]+)", done.stdout)
    assert done.returncode == 0 and float(accuracy[-1]) == 1, done.stdout + done.stderr


def test_a_timeout_that_is_no_number_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("TUTTI_TIMEOUT", "soon")
    with pytest.raises(tutti.InvalidArgument, match="TUTTI_TIMEOUT is 'soon'"):
        dist.init_process_group("tutti", store=dist.HashStore(), rank=0, world_size=1)
