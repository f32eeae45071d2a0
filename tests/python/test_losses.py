"""What stands for a loss, or for parameters: PyTorch's, look-alikes, and what only looks so."""

import sys
import types

import numpy
import pytest

import launching
import tutti
from tutti import opt


@pytest.fixture
def sgd(comm):
    return opt.DistOpt(opt.SGD(lr=1.0), communicator=comm)


def zeros(*shape):
    return numpy.zeros(shape, numpy.float32)


def ones(*shape):
    return numpy.ones(shape, numpy.float32)


class Tensor:
    """As PyTorch's: a scalar that knows its graph."""

    def __init__(self, shape=(), grad_fn=None):
        self.shape, self.grad_fn = shape, grad_fn

    def numel(self):
        return int(numpy.prod(self.shape))

    def __dlpack__(self):
        raise RuntimeError("not an array to be taken")

    def __iter__(self):
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter([Tensor(self.shape[1:])] * self.shape[0])

    def backward(self):
        self.grad_fn.run()


class Gradient(numpy.ndarray):
    """The contiguous one of PyTorch's methods."""

    is_sparse = False
    _version = 0

    def contiguous(self):
        return self

    def resolve_neg(self):
        return self


class Node:
    """A node of PyTorch's graph."""

    def __init__(self, *following):
        self.next_functions = [(node, 0) for node in following]

    def run(self):
        for node, _ in self.next_functions:
            if node is not None:
                node.run()


class AccumulateGrad(Node):
    def __init__(self, leaf):
        super().__init__()
        self.variable, self.hooks = leaf, []

    def register_hook(self, hook):
        self.hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    def run(self):
        self.variable.grad = numpy.ones(self.variable.shape, numpy.float32).view(Gradient)
        for hook in list(self.hooks):
            hook(None, None)


class Leaf(numpy.ndarray):
    grad = None

    def is_contiguous(self):
        return True


@pytest.fixture
def fake_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))


@pytest.mark.usefixtures("fake_torch")
def test_the_leaves_of_a_graph(sgd):
    leaves = [zeros(2, 3).view(Leaf), zeros(4).view(Leaf)]
    inner = Node(*map(AccumulateGrad, leaves), None)
    inner.variable = "an attribute that a function of the user's keeps for itself"
    sgd(Tensor((), Node(inner)))
    assert all((leaf == -1).all() for leaf in leaves)


@pytest.mark.usefixtures("fake_torch")
def test_a_graph_that_hides_parameters(sgd):
    hidden = type("CheckpointFunctionBackward", (Node,), {})()
    with pytest.raises(tutti.InvalidArgument, match="use_reentrant=False"):
        sgd(Tensor((), Node(Node(hidden))))


@pytest.mark.usefixtures("fake_torch")
def test_an_array_is_no_loss(sgd):
    for bad, shape in ((Tensor((5, 2)), r"\(5, 2\)"), (Tensor(()), r"\(\)"), (ones(5, 2), r"\(5, 2\)"),
                       (Tensor((5, 2), Node()), r"\(5, 2\)")):
        with pytest.raises(TypeError, match=f"^loss is a .* of shape {shape}, but must be an iterable"):
            sgd(bad)
    for protocol in ("__array_interface__", "__dlpack__"):  # which have no attribute of that name
        bad = types.SimpleNamespace(**{protocol: None})
        with pytest.raises(TypeError, match="^loss is a types.SimpleNamespace, but must be an iterable"):
            sgd(bad)
    for bad in ([Tensor((2,))], iter([ones(2, 3)])):
        with pytest.raises(TypeError, match=r"^loss must yield pairs \(param, grad\), not a "):
            sgd(bad)
    assert sgd.state()["numbers"]["steps"] == 0


def test_a_gradient_has_the_shape_of_its_parameter(sgd):
    first, second = zeros(2, 3), zeros(6)
    wrong = r"gradient has shape \(3, 2\), but parameter {} has shape \(2, 3\)"
    with pytest.raises(tutti.InvalidArgument, match=wrong.format("#1")):
        sgd([(second, ones(6)), (first, ones(3, 2))])
    sgd.register_parameters([("first", first), second])
    for _ in range(2):
        with pytest.raises(tutti.InvalidArgument, match=wrong.format("'first'")):
            sgd([(second, ones(6)), (first, ones(3, 2))])
        with pytest.raises(tutti.InvalidArgument, match=r"\(6, 1\), but parameter #1 has shape \(6,\)"):
            sgd([(second, ones(6, 1)), (first, ones(2, 3))])
        with pytest.raises(tutti.InvalidArgument, match=wrong.format("'first'")):
            sgd.update(first, ones(3, 2))
        assert not first.any() and not second.any()
    sgd([(second, ones(6)), (first, ones(2, 3))])
    assert (first == -1).all() and (second == -1).all()


def test_what_to_register(sgd):
    model = types.SimpleNamespace(named_parameters=lambda: [("weight", zeros(3))])
    for bad, message in (
            ({"weight": zeros(3)}, r"is a dict, .*: pass model.named_parameters\(\)"),
            (zeros(3, 3), "is a numpy.ndarray, but must be an iterable of arrays, or of pairs"),
            (5, "is a int, but must be an iterable of arrays, or of pairs"),
            (None, "is a NoneType, but must be")):
        with pytest.raises(TypeError, match="^parameters " + message) as error:
            sgd.register_parameters(bad)
        assert "\n" not in str(error.value)
    for bad, message in ((("a", zeros(3), 3), "parameter #1 has 3 items, but must be an array, or a"),
                         ((3, zeros(3)), "parameter #1: its name is a int, but must be a str"),
                         ("weight", "parameter #1 is a str, but must be an array")):
        with pytest.raises(TypeError, match="^" + message):
            sgd.register_parameters([zeros(2), bad])
    assert len(sgd.register_parameters(model)) == 1


def test_what_dist_opt_works_with():
    class Adam:
        pass

    Adam.__module__ = "torch.optim.adam"
    comm = tutti.Communicator(0, 1, tutti.NcclIdHolder())
    for bad, message in ((Adam(), r"opt is a torch.optim.adam.Adam, but must be a tutti.opt.SGD, "),
                         (opt.SGD, "opt is a .*, but"), (0.1, "opt is a float, but"),
                         (comm, "opt is a tutti._core.Communicator, but")):
        with pytest.raises(TypeError, match="^" + message) as error:
            opt.DistOpt(bad)  # before any rank is waited for
        assert "\n" not in str(error.value)
    with pytest.raises(TypeError, match="^communicator is a int, but must be a tutti.Communicator$"):
        opt.DistOpt(communicator=3)


# --- With PyTorch itself ---------------------------------------------------------------------------


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


def test_a_torch_loss():
    pytest.importorskip("torch")
    launching.run(torch_steps, 2, "spawn")


def test_a_batch_of_torch_losses_is_none(sgd):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(3, 2)
    with pytest.raises(TypeError, match=r"^loss is a torch.Tensor of shape \(5, 2\)"):
        sgd(layer(torch.ones(5, 3)))
    sgd(layer(torch.ones(5, 3)).mean())
    for bad in (layer.state_dict(), next(layer.parameters())):
        with pytest.raises(TypeError, match="^parameters is a"):
            sgd.register_parameters(bad)
    for bad in (torch.optim.Adam(layer.parameters()), torch.optim.SGD(layer.parameters(), 0.1)):
        with pytest.raises(TypeError, match="^opt is a torch.optim.* but must be a tutti.opt.SGD"):
            opt.DistOpt(bad)


def test_checkpoints_of_torch(sgd):
    pytest.importorskip("torch")
    import torch
    from torch.utils.checkpoint import checkpoint

    layers = [torch.nn.Linear(3, 3) for _ in range(2)]
    x = torch.ones(1, 3, requires_grad=True)
    with pytest.raises(tutti.InvalidArgument, match="use_reentrant=False"):
        sgd(checkpoint(layers[1], layers[0](x), use_reentrant=True).mean())
    before = [layer.bias.detach().clone() for layer in layers]
    sgd(checkpoint(layers[1], layers[0](torch.ones(1, 3)), use_reentrant=False).mean())
    assert not any((layer.bias == old).all() for layer, old in zip(layers, before))


def test_an_attribute_of_a_torch_function(sgd):
    torch = pytest.importorskip("torch")

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.variable = "mine"
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    weight = torch.zeros(3, requires_grad=True)
    sgd(Twice.apply(weight).sum())
    assert weight.tolist() == [-2, -2, -2]


def test_gradients_that_torch_negates_when_they_are_read(sgd):
    torch = pytest.importorskip("torch")
    weight = torch.ones(3, requires_grad=True)
    sgd((weight * torch.tensor([1j, 2j, 3j]).conj().imag).sum())
    assert weight.tolist() == [2, 3, 4]
