"""What wraps models with the backend "tutti" of torch.distributed."""

import pytest

from torch_group import (  # noqa: F401 - ranks is a fixture
    VERSION,
    Net,
    batch,
    both_heads,
    dist,
    one_head,
    ranks,
    torch,
    trained_alone,
)
from tutti.torch import hooks


def train_ddp(rank, ranks, heads_of):
    net = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True,
                                                    bucket_cap_mb=0.001)
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        net(batch(step, rank), heads_of(step, rank)).square().mean().backward()
        sgd.step()
    for ours, theirs in zip(net.parameters(), trained_alone(ranks, heads_of)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("heads_of", [both_heads, one_head])
def test_ddp_trains_as_one_process_does(ranks, heads_of):
    ranks(train_ddp, 2, heads_of)


def train_compiled(rank, ranks):
    """PyTorch compiles what it calls the group in the middle of."""
    net = torch.nn.parallel.DistributedDataParallel(Net())
    compiled = torch.compile(net, backend="eager")
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        compiled(batch(step, rank)).square().mean().backward()
        sgd.step()
    for ours, theirs in zip(net.parameters(), trained_alone(ranks, both_heads)):
        torch.testing.assert_close(ours, theirs)


def test_ddp_may_be_compiled(ranks):
    ranks(train_compiled, 2)


def train_complex(rank, ranks, mode):
    """Beside a real parameter; with the hook of a mode, or without."""
    net = torch.nn.Linear(8, 3, dtype=torch.complex64)
    net.scale = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        net.weight.fill_(1 + 2j)
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    ddp.module.forward = lambda x: torch.nn.functional.linear(x, net.weight, net.bias) * net.scale
    if mode is not None:
        ddp.register_comm_hook(hooks.State(ddp, mode), hooks.hook)
    (ddp(torch.full((1, 8), 1j * (rank + 1))) * (1 + 1j)).real.sum().backward()
    mean = (ranks + 1) / 2
    assert net.weight.grad.tolist() == [[mean * (-1 - 1j)] * 8] * 3
    assert net.bias.grad.tolist() == [1 - 1j] * 3


@pytest.mark.skipif(VERSION < (2, 12), reason="DistributedDataParallel had no complex buckets")
@pytest.mark.parametrize("mode", [None, "fp32", "bf16"])
def test_ddp_takes_complex_parameters(ranks, mode):
    ranks(train_complex, 2, mode)


def train_compressed(rank, ranks):
    """In several buckets, of each of which several collectives wait for each other."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    torch.manual_seed(0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
        *(torch.nn.Linear(40, 40) for _ in range(4))), bucket_cap_mb=0.007)
    net.register_comm_hook(powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    for step in range(5):
        net.zero_grad()
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(100 * step + rank))
        net(x).square().mean().backward()
    mine = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])
    everybody = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(everybody, mine)
    assert mine.norm() > 0 and all(torch.equal(one, mine) for one in everybody)


def test_pytorch_s_own_hook_compresses(ranks):
    ranks(train_compressed, 2)


def train_uneven(rank, ranks):
    net = torch.nn.parallel.DistributedDataParallel(Net())
    with net.join():
        for step in range(2 + rank):
            net(batch(step, rank)).square().mean().backward()
    embedding = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(10, 3, sparse=True))
    embedding(torch.tensor([rank, 5])).sum().backward()
    dense = embedding.module.weight.grad.to_dense()
    assert dense[:, 0].tolist() == [0.5, 0.5, 0, 0, 0, 1, 0, 0, 0, 0]


def test_ddp_with_uneven_data_and_with_sparse_gradients(ranks):
    ranks(train_uneven, 2)


def train_sharded(rank, ranks):
    from torch.distributed.fsdp import FullyShardedDataParallel

    net = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"))
    sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        net(batch(step, rank)).square().mean().backward()
        sgd.step()
    with FullyShardedDataParallel.summon_full_params(net):
        for ours, theirs in zip(net.parameters(), trained_alone(ranks, both_heads)):
            torch.testing.assert_close(ours.reshape(theirs.shape), theirs)


def train_zero(rank, ranks):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    net = torch.nn.parallel.DistributedDataParallel(Net())
    sgd = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    for step in range(4):
        sgd.zero_grad()
        net(batch(step, rank)).square().mean().backward()
        sgd.step()
    for ours, theirs in zip(net.parameters(), trained_alone(ranks, both_heads)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("train", [
    pytest.param(train_sharded, marks=pytest.mark.skipif(
        VERSION < (2, 2), reason="FSDP on CPUs needs PyTorch 2.2")), train_zero])
def test_sharded_training_is_that_of_one_process(ranks, train):
    ranks(train, 2)


def train_from_a_checkpoint(rank, ranks, folder):
    """FSDP's second form, with torch.distributed.checkpoint in the middle."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks,))
    for steps in (range(2), range(2, 4)):
        net = Net()
        for part in (net.body, *net.heads, net):
            fully_shard(part, mesh=mesh)
        sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        model, optimizer = get_state_dict(net, sgd)
        state = {"model": model, "optimizer": optimizer}
        if steps.start:
            checkpoint.load(state, checkpoint_id=folder)
            set_state_dict(net, sgd, model_state_dict=state["model"],
                           optim_state_dict=state["optimizer"])
        for step in steps:
            sgd.zero_grad()
            net(batch(step, rank)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1e6)
            sgd.step()
        if not steps.start:
            model, optimizer = get_state_dict(net, sgd)
            checkpoint.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
    for ours, theirs in zip(net.parameters(), trained_alone(ranks, both_heads)):
        torch.testing.assert_close(ours.full_tensor(), theirs)


@pytest.mark.skipif(VERSION < (2, 6), reason="fully_shard() came with PyTorch 2.6")
def test_sharded_training_goes_on_from_a_checkpoint(ranks, tmp_path):
    ranks(train_from_a_checkpoint, 2, str(tmp_path / "checkpoint"))
