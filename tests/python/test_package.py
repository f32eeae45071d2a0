"""The package around the bindings: helpers, types, info, PyTorch, mpi4py."""

import importlib.util
import subprocess
import sys

import numpy
import pytest

import launching
import tutti
from tutti import opt


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"no {package}")


def test_data_partition():
    x, y = numpy.arange(10), numpy.arange(10) * 2
    for ranks in (1, 2, 3, 4, 7, 15):
        parts = [tutti.data_partition(x, y, rank, ranks) for rank in range(ranks)]
        assert {len(part) for part, _ in parts} == {-(-10 // ranks)}
        assert set(numpy.concatenate([part for part, _ in parts])) == set(range(10))
        assert all((labels == 2 * part).all() for part, labels in parts)
    assert tutti.data_partition(x, y, 3, 4)[0].tolist() == [9, 0, 1]
    assert tutti.data_partition(x, y, 0, 2)[0].base is x  # no copy where none is needed
    for arguments in [(x, y[1:], 0, 1), (x, y, 2, 2), (x[:0], y[:0], 0, 1)]:
        with pytest.raises(tutti.InvalidArgument):
            tutti.data_partition(*arguments)


def broadcasting(place):
    comm = place.communicator()
    params = {name: numpy.full(5, place.rank, numpy.float32) for name in "ab"}
    tutti.broadcast_parameters(params, comm, root=1)
    tutti.broadcast_parameters(list(params.values()), comm)
    assert all((array == 1).all() for array in params.values())


def test_broadcast_parameters():
    launching.run(broadcasting, 2, "fork")


def test_save_leaves_no_half_file(tmp_path):
    comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
    dist = opt.DistOpt(opt.SGD(), communicator=comm)
    tutti.save(tmp_path / "state", dist)
    with pytest.raises(FileNotFoundError):
        tutti.save(tmp_path / "none" / "state", dist)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    numpy.savez(tmp_path / "other.npz", weights=numpy.zeros(3))
    with pytest.raises(ValueError, match="not an optimiser's state"):
        tutti.load(tmp_path / "other.npz", dist)


def test_info():
    text = subprocess.run([sys.executable, "-m", "tutti.info"], capture_output=True, text=True,
                          check=True, timeout=60).stdout
    for word in (tutti.__version__, "MPI", "NCCL", "GPUs", "shared memory"):
        assert word in text


SCRIPT = """
from typing import Iterator, Optional, Tuple
import numpy as np
import numpy.typing as npt
import tutti
from tutti import opt

Pair = Tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

def backward(param: npt.NDArray[np.float32]) -> Iterator[Pair]:
    yield param, np.ones_like(param)

def train(nccl_id: Optional[tutti.NcclIdHolder] = None, local_rank: Optional[int] = None,
          world_size: Optional[int] = None) -> int:
    sgd = opt.DistOpt(opt.SGD(lr=0.1, momentum=0.9), nccl_id=nccl_id, local_rank=local_rank,
                      world_size=world_size)
    param = np.zeros(3, np.float32)
    sgd(backward(param))
    sgd.backward_and_sparse_update(backward(param), spars=0.5, topK=True)
    x, y = tutti.data_partition(param, param, sgd.global_rank, sgd.world_size)
    event = sgd.communicator.all_reduce(x, op="max", stream=tutti.Stream())
    event.wait()
    try:
        sgd.communicator.barrier()
    except tutti.PeerLost as lost:
        print(lost.ranks, lost.reason)
    sgd.opt.lr *= 0.5
    return sgd.world_size
"""


@needs("mypy")
def test_a_script_passes_mypy_strict(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache",
                           script, "-p", "tutti"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    script.write_text(SCRIPT + 'opt.SGD(learning_rate=0.1)\n')
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache",
                           script], capture_output=True, text=True, timeout=300)
    assert "learning_rate" in done.stdout


def beside_mpi4py(place):
    from mpi4py import MPI

    comm = tutti.Communicator.from_mpi(MPI.COMM_WORLD)
    part = MPI.COMM_WORLD.Split(0, -MPI.COMM_WORLD.rank)
    reversed_comm = tutti.Communicator.from_mpi(part)
    part.Free()
    array = numpy.full(1000, comm.global_rank, numpy.float32)
    comm.all_reduce(array)
    assert (array == sum(range(comm.world_size))).all()
    assert reversed_comm.global_rank == comm.world_size - 1 - comm.global_rank
    world = tutti.Communicator()
    world.barrier()
    for one in (comm, reversed_comm, world):
        one.close()
    assert MPI.COMM_WORLD.allreduce(1) == array.size // 1000 * MPI.COMM_WORLD.size  # goes on working
    with pytest.raises(tutti.InvalidArgument, match="MPI_COMM_NULL"):
        tutti.Communicator.from_mpi(MPI.COMM_NULL)
    with pytest.raises(TypeError, match="comm is a int"):
        tutti.Communicator.from_mpi(5)


@needs("mpi4py")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_beside_mpi4py(ranks):
    launching.run(beside_mpi4py, ranks, "mpi")


def torch_steps(place):
    import torch

    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    theirs.load_state_dict(ours.state_dict())
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    dist = place.dist_opt(opt.SGD(lr=0.1, momentum=0.9), buffSize=10)
    x = torch.randn(4 * place.ranks, 6)
    for _ in range(4):
        mine = x[4 * place.rank : 4 * place.rank + 4]
        dist(ours(mine).square().mean())
        reference.zero_grad()
        theirs(x).square().mean().backward()
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters()):
        torch.testing.assert_close(a, b)
    with pytest.raises(TypeError, match="loss"):
        dist(torch.zeros(()))


@needs("torch")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_torch_loss(ranks):
    launching.run(torch_steps, ranks, "spawn")
