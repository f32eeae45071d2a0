"""make_allreduce_cb() and GradManager on PyTorch's backward passes: sums, accumulation, overlap, order,
and passes that fail."""

import numpy
import pytest

import tutti
import tutti.distributed as dist

torch = pytest.importorskip("torch", minversion="2.1")  # since when gradients have hooks
# What PyTorch imports at its first use, forked ranks need not import each.
torch.testing.assert_close(torch.ones(1), torch.ones(1))


def model():
    torch.manual_seed(dist.get_rank())
    frozen = torch.nn.Linear(4, 300).requires_grad_(False)
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), frozen,
                               torch.nn.Linear(300, 3, dtype=torch.float32))


def summed(method, with_manager):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net = model()
    dist.bcast_list_(net.parameters())
    callback = dist.make_allreduce_cb(method)
    gm = dist.GradManager()
    if with_manager:
        assert gm.attach(net.parameters(), callbacks=[callback]) is gm
        assert len(gm.attached_tensors()) == 6
    else:
        hooks = callback.attach(net.parameters())
    x = torch.randn(4 * ranks, 6, generator=torch.Generator().manual_seed(5))
    reference = model()
    reference.load_state_dict(net.state_dict())
    for passes in (1, 2, 3):  # the gradients of several add up
        for part in (net, reference):
            part.zero_grad()
        for _ in range(passes):
            loss = net(x[4 * rank : 4 * rank + 4]).square().mean()
            if with_manager:
                with gm:
                    gm.backward(loss)
            else:
                loss.backward()
            total = sum(reference(part).square().mean() for part in x.chunk(ranks))
            (total / ranks if method == "mean" else total).backward()
        for mine, wanted in zip(net.parameters(), reference.parameters()):
            assert (mine.grad is None) == (wanted.grad is None)
            if wanted.grad is not None:
                torch.testing.assert_close(mine.grad, wanted.grad)
    if not with_manager:
        hooks.remove()
        net.zero_grad()
        net(x if rank == 0 else 0 * x).sum().backward()
        assert net[3].bias.grad.sum() == 3 * len(x)


@pytest.mark.parametrize("with_manager", [False, True])
@pytest.mark.parametrize("method", ["sum", "mean"])
def test_gradients_of_all_ranks(method, with_manager):
    dist.launcher(summed, n_gpus=3)(method, with_manager)


def several_callbacks():
    weight = torch.ones(3, requires_grad=True)
    gm = dist.GradManager().attach(weight, [lambda tensor, gradient: 2 * gradient,
                                            dist.make_allreduce_cb("sum")])
    with gm:
        gm.backward(weight * torch.tensor([1.0, 2.0, 3.0]))
        gm.backward([weight.sum(), 3 * weight], [torch.tensor(5.0), torch.ones(3)])
    assert weight.grad.tolist() == [4.0 * i + 32 for i in (1, 2, 3)]


def test_callbacks_follow_each_other():
    dist.launcher(several_callbacks, n_gpus=2)()


def overlapping():
    """The first pack travels while the rest of the backward pass runs."""
    layers = [torch.nn.Linear(1700, 1700) for _ in range(3)]  # 11 MiB each
    net = torch.nn.Sequential(*layers)
    callback = dist.make_allreduce_cb("sum")
    callback.attach(net.parameters())
    seen = []
    layers[0].weight.register_hook(lambda gradient: seen.append(len(callback._under_way)))
    net(torch.ones(1, 1700)).sum().backward()
    assert seen[0] >= 2 and not callback._under_way
    assert layers[2].bias.grad[0] == dist.get_world_size()


def test_gradients_travel_while_others_are_made():
    dist.launcher(overlapping, n_gpus=2)()


def other_order():
    first, second = (torch.ones(3, requires_grad=True) for _ in range(2))
    dist.make_allreduce_cb("sum").attach([first, second])
    pair = (first, second) if dist.get_rank() == 0 else (second, first)
    with pytest.raises(tutti.MismatchError, match="in different orders"):
        (pair[0].exp() * pair[1]).sum().backward()


def test_parameters_in_another_order():
    dist.launcher(other_order, n_gpus=2)()


def gradients_that_are_returned():
    weight = torch.ones(3, requires_grad=True)
    dist.make_allreduce_cb("sum").attach([weight])
    for _ in range(2):  # once with no .grad
        found, = torch.autograd.grad((2 * weight).sum(), [weight])
        assert found.tolist() == [2.0] * 3 and weight.grad is None
    weight.sum().backward()
    torch.autograd.grad((2 * weight).sum(), [weight])
    assert weight.grad.tolist() == [2.0] * 3


def test_gradients_that_are_returned_do_not_count():
    dist.launcher(gradients_that_are_returned, n_gpus=2)()


class Fails:
    def __call__(self, parameter, gradient):
        return gradient

    def flush(self):
        raise ValueError("no sum today")


def test_a_sum_that_fails_leaves_what_was_there():
    weight = torch.ones(3, requires_grad=True)
    weight.grad = torch.full((3,), 5.0)
    gm = dist.GradManager().attach(weight, Fails())
    with gm, pytest.raises(ValueError, match="no sum today"):
        gm.backward(weight.sum())
    assert weight.grad.tolist() == [5.0] * 3


def test_numbers_are_not_given_to_others():
    callback = dist.make_allreduce_cb("sum")
    for _ in range(3):  # the memory of the last one is used again
        callback.number([torch.ones(3)])
    assert len(callback._numbers) == 3


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no gradient today")


def broken_pass(large):
    """A pass that fails is forgotten; unless gradients were on their way, which ends the others."""
    weight = torch.ones(3, requires_grad=True)
    head = torch.ones((3 << 20) if large else 5, requires_grad=True)
    gm = dist.GradManager().attach([weight, head], dist.make_allreduce_cb("sum"))
    broken = dist.get_rank() == 1

    def loss(break_it):
        x = Broken.apply(2 * weight) if break_it else 2 * weight
        return (x.sum() * head).sum()

    with gm:
        if large and not broken:
            with pytest.raises(tutti.PeerLost, match="lost rank 1: its backward pass failed when"):
                gm.backward(loss(False))
            return
        with pytest.raises(ValueError, match="no gradient today"):
            gm.backward(loss(broken or not large))
        if large:
            with pytest.raises(tutti.CommunicationError):
                dist.group_barrier()
            return
    for tensor in (weight, head):
        tensor.grad = torch.ones_like(tensor)
    with gm, pytest.raises(ValueError, match="no gradient today"):
        gm.backward(loss(True))
    assert head.grad.tolist() == [1.0] * 5  # what it held before that pass
    with gm:
        gm.backward(loss(False))
    assert weight.grad.tolist() == [21.0] * 3


@pytest.mark.parametrize("large", [False, True])
def test_a_pass_that_fails(large):
    dist.launcher(broken_pass, n_gpus=2)(large)


def checkpointed():
    from torch.utils.checkpoint import checkpoint

    layers = [torch.nn.Linear(3, 3) for _ in range(3)]
    parameters = [p for layer in layers for p in layer.parameters()]
    dist.make_allreduce_cb("sum").attach(parameters)
    x = torch.ones(1, 3, requires_grad=True)
    with pytest.raises(tutti.InvalidArgument, match="use_reentrant=False"):
        layers[2](checkpoint(layers[1], layers[0](x), use_reentrant=True)).sum().backward()


def test_checkpoints_that_hide_parameters():
    dist.launcher(checkpointed, n_gpus=1)()


def test_what_is_refused():
    with pytest.raises(tutti.InvalidArgument, match="a parameter is a ndarray"):
        dist.make_allreduce_cb("sum").attach([numpy.ones(3)])
    with pytest.raises(TypeError, match=r"tensors\[1\] is a int, but must be a torch.Tensor"):
        dist.GradManager().attach([torch.ones(1), 5])
    with pytest.raises(tutti.InvalidArgument, match=r"callbacks\[0\] sums .* must be the last"):
        dist.GradManager().attach([], [dist.make_allreduce_cb("sum"), print])
    gm = dist.GradManager()
    with gm, pytest.raises(tutti.InvalidArgument, match="records already"):
        gm.record()
    with pytest.raises(tutti.InvalidArgument, match="dy has 1 tensors, but y 2"):
        gm.backward([torch.ones(1), torch.ones(1)], torch.ones(1))
    gm.backward([])
    gm.release()
