"""What the tests of DistOpt on models of PyTorch share."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("torch._dynamo"):  # or the first use of torch.optim reads it, on each rank
    importlib.import_module("torch._dynamo")
torch.set_num_threads(1)  # threads would not come along in a fork
STEPS = 4
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))


def mlp(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(),
                               torch.nn.Linear(5, 3)).to(dtype)


def batch(rank, step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(4, 6, generator=generator).to(dtype)


def assert_same(model, other):
    for one, two in zip(model.parameters(), other.parameters()):
        assert torch.equal(one, two)
