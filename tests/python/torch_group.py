"""What the tests of the backend "tutti" of torch.distributed share: ranks in a process group, and a
model with what one process makes of it."""

import datetime

import pytest

import launching

torch = pytest.importorskip("torch", minversion="2.1")
dist = pytest.importorskip("torch.distributed")
import tutti.torch  # noqa: E402,F401 - registers the backend

torch.set_num_threads(1)  # threads would not come along in a fork
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def begin(place, path, seconds=60):
    dist.init_process_group("tutti", store=dist.FileStore(path, place.ranks), rank=place.rank,
                            world_size=place.ranks, timeout=datetime.timedelta(seconds=seconds))


def in_group(place, path, body, *arguments):
    begin(place, path)
    result = body(place.rank, place.ranks, *arguments)
    dist.destroy_process_group()
    return result


@pytest.fixture
def ranks(tmp_path):
    """Calls body(rank, ranks, ...) in the default group of forked ranks; what it returned, by
    rank."""
    import torch._dynamo  # noqa: F401 - DistributedDataParallel's first use would, on each rank

    def call(body, count, *arguments):
        return launching.run(in_group, count, "fork", str(tmp_path / "store"), body, *arguments)

    return call


class Net(torch.nn.Module):
    """Of its two heads, one batch may use one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh())
        self.heads = torch.nn.ModuleList([torch.nn.Linear(32, 1), torch.nn.Linear(32, 1)])

    def forward(self, x, heads=(0, 1)):
        y = self.body(x)
        return sum(self.heads[head](y) for head in heads)


def batch(step, rank):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def both_heads(step, rank):
    return (0, 1)


def one_head(step, rank):
    return ((step + rank) % 2,) if step else (0,)


def sgd_of(net):
    return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)


def trained_alone(ranks, heads_of, optimizer_of=sgd_of):
    """The parameters after steps of one process that has all batches."""
    net = Net()
    optimizer = optimizer_of(net)
    for step in range(4):
        optimizer.zero_grad()
        losses = [net(batch(step, r), heads_of(step, r)).square().mean() for r in range(ranks)]
        (sum(losses) / ranks).backward()
        optimizer.step()
    return list(net.parameters())
