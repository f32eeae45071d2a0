"""tutti.ps with PyTorch: modules whose backward pass pushes, and Dense of a module, against PyTorch."""

import copy
import io

import pytest

import launching
import tutti
from tutti import opt, ps

torch = pytest.importorskip("torch")
# What PyTorch imports at its first use, forked ranks need not import each.
torch.testing.assert_close(torch.ones(1), torch.ones(1))
torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0).step()

ROWS, DIM, PADDING = 20, 4, 3


def alone(tables, **options):
    return ps.start(tables, servers="thread", mode=ps.Sync(),
                    communicator=tutti.Communicator(0, 1, tutti.NcclIdHolder()), **options)


def table():
    return ps.Embedding("item", DIM, optimizer=ps.Sgd(0.5), init=ps.Uniform(-1, 1),
                        padding_idx=PADDING)


def twin(items, kind, **options):
    """PyTorch's module with the rows that the table has."""
    module = kind(ROWS, DIM, padding_idx=PADDING, **options)
    with torch.no_grad():
        module.weight.copy_(items.lookup(torch.arange(ROWS)))
    return module


def bags():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, ROWS, (6, 5), generator=generator)
    yield (ids,)
    yield (torch.full((2, 3), PADDING),)
    flat, offsets = ids.flatten(), torch.tensor([0, 7, 7, 12])
    yield flat, offsets
    yield flat[:0], offsets[:0]


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_bag_is_pytorch_s(mode):
    items = table()
    with alone([items]) as fleet:
        bag, wanted = ps.torch.EmbeddingBag(items, mode), twin(items, torch.nn.EmbeddingBag, mode=mode)
        sgd = torch.optim.SGD(wanted.parameters(), lr=0.5)
        for arguments in bags():
            for module in (bag, wanted):
                result = module(*arguments)
                (result * torch.arange(1.0, 1 + result.numel()).view_as(result).cos()).sum().backward()
            torch.testing.assert_close(bag(*arguments), wanted(*arguments))
            fleet.step()
            sgd.step()
            sgd.zero_grad()
            torch.testing.assert_close(items.lookup(torch.arange(ROWS)), wanted.weight.detach())
        assert not list(bag.parameters()) and repr(mode) in repr(bag)


def test_weights_of_samples():
    items = table()
    ids = torch.tensor([[1, 2], [PADDING, 4]])
    weights = torch.tensor([[0.5, 2.0], [3.0, -1.0]], requires_grad=True)
    with alone([items]):
        bag, wanted = ps.torch.EmbeddingBag(items), twin(items, torch.nn.EmbeddingBag, mode="sum")
        gradients = []
        for module in (bag, wanted):
            result = module(ids, per_sample_weights=weights)
            gradients.append(torch.autograd.grad(result.square().sum(), weights)[0])
            torch.testing.assert_close(result, wanted(ids, per_sample_weights=weights))
        torch.testing.assert_close(*gradients)


def test_lookups_are_pytorch_s():
    items = table()
    ids = torch.tensor([[1, 1], [PADDING, 19]])
    with alone([items]) as fleet:
        module, wanted = ps.torch.Embedding(items), twin(items, torch.nn.Embedding)
        torch.testing.assert_close(module(ids), wanted(ids))
        with torch.no_grad():
            assert not module(ids).requires_grad
        module(ids).square().sum().backward()
        wanted(ids).square().sum().backward()
        fleet.step()
        with torch.no_grad():
            wanted.weight -= 0.5 * wanted.weight.grad
        torch.testing.assert_close(module(ids), wanted(ids))
        out = torch.empty(2, 2, DIM)
        assert items.lookup(ids, out=out) is out and (out == module(ids)).all()


def test_gradients_and_ids_of_other_types():
    items = table()
    ids = torch.tensor([[1, 2], [1, PADDING]])
    with alone([items]) as fleet:
        module = ps.torch.Embedding(items)
        before = items.lookup(torch.arange(3))
        with torch.inference_mode():
            assert torch.equal(module(ids), module(ids.int())) and not module(ids).requires_grad
        for kind in (torch.float16, torch.bfloat16, torch.float64):
            module(ids).to(kind).sum().backward()
            items.push(ids, torch.ones(2, 2, DIM, dtype=kind))
            fleet.step()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (module(ids.t()) @ torch.ones(DIM, 1)).sum().backward()
        fleet.step()
        # 1 comes twice in each of seven pushes, 2 once, and the rate is 0.5.
        wanted = before - torch.tensor([[0.0], [7.0], [3.5]])
        torch.testing.assert_close(items.lookup(torch.arange(3)), wanted)


@pytest.mark.parametrize("kind", [ps.torch.Embedding, ps.torch.EmbeddingBag])
def test_a_model_in_half_precision(kind):
    items = table()
    ids = torch.tensor([[1, 2], [1, PADDING]])
    with alone([items]) as fleet:
        net = torch.nn.Sequential(kind(items), torch.nn.Linear(DIM, 1, bias=False))
        with torch.no_grad():
            net[1].weight.fill_(1.0)
        assert net.half()[0](ids).dtype is torch.float16 and net.double()[0](ids).dtype is torch.float64
        assert net.float()[0](ids).dtype is torch.float32
        before = items.lookup([1, 2])
        net.bfloat16()(ids).sum().backward()
        fleet.step()
        # What the rows are is float32, whatever the model is: 1 comes twice, and the rate is 0.5.
        torch.testing.assert_close(torch.as_tensor(items.lookup([1, 2])),
                                   torch.as_tensor(before) - torch.tensor([[1.0], [0.5]]))


def test_what_a_look_up_may_be_written_to():
    items = table()
    ids = torch.tensor([[1, 2, 3], [4, PADDING, 5]])
    with alone([items]):
        wanted = torch.from_numpy(items.lookup(ids.numpy()))
        for of in (ids, ids.int(), ids.t().contiguous().t(), ids.numpy()):
            for out in (torch.empty(2, 3, DIM), torch.empty(2, 3, DIM, requires_grad=True),
                        torch.empty(2, 3, DIM).numpy()):
                assert items.lookup(of, out=out) is out and torch.equal(torch.as_tensor(out), wanted)
            assert torch.equal(torch.as_tensor(items.lookup(of)), wanted)
        kept = [items.lookup(ids + number) for number in range(4)]  # memory of its own each
        assert torch.equal(kept[0], wanted) and torch.equal(kept[1][0, :2], wanted[0, 1:])
        for out, reason in [(torch.empty(3, 2, DIM), r"shape \(3, 2, 4\), but must have \(2, 3, 4\)"),
                            (torch.empty(2, 3, DIM, dtype=torch.float16), "out is of float16"),
                            (torch.empty(3, 2, DIM).transpose(0, 1), "not contiguous"),
                            (torch.empty(2, 3, DIM, device="meta"), "out is on meta")]:
            with pytest.raises(tutti.InvalidArgument, match=reason):
                items.lookup(ids, out=out)


def test_a_second_backward_pass_is_refused_and_pushes_nothing():
    items = table()
    with alone([items]) as fleet:
        before = items.lookup([1])
        x = torch.ones(1, requires_grad=True)
        loss = (ps.torch.Embedding(items)(torch.tensor([1])) * x).square().sum()
        with pytest.raises(tutti.InvalidArgument, match="item is pushed.*create_graph must be False"):
            loss.backward(create_graph=True)
        fleet.step()
        assert (items.lookup([1]) == before).all()


def test_ids_that_were_changed_and_graphs_that_are_used_up_push_nothing():
    items = table()
    with alone([items]) as fleet:
        before = items.lookup(range(ROWS))
        bag = ps.torch.EmbeddingBag(items)
        ids = torch.tensor([[1, 2]])
        loss = bag(ids).sum()
        ids.fill_(7)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        fleet.step()
        assert (items.lookup(range(ROWS)) == before).all()
        loss = bag(ids).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        fleet.step()
        assert (items.lookup([7]) == before[7] - 1).all()  # both ids are 7


def linear():
    net = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        net.weight.zero_()
    return net, ps.Dense(net, optimizer=ps.Sgd(1.0))


def test_a_step_takes_the_gradients_of_pytorch_s_parameters():
    net, _ = linear()
    trained = ps.DistributedOptimizer(ps.Sgd(1.0), ps.StrategyFactory.create_sync_strategy())
    trained.minimize(net)
    trained.dense.optimizer = trained.rule
    with alone([trained.dense]) as trained.fleet:
        with pytest.raises(tutti.InvalidArgument, match="weight has a .grad"):
            trained.step()
        for step in range(3):
            net.zero_grad()
            net(torch.ones(1, 2)).sum().backward()
            trained.step()
            assert (net.weight == -1 - step).all()


def in_place(place):
    """A model whose parameters are the servers' memory, cut into a part for each of two."""
    torch.manual_seed(place.rank)  # worker 0's values count
    net = torch.nn.Linear(64, 512)
    dense = ps.Dense(net, optimizer=ps.Sgd(0.5), shared=True)
    with ps.start([dense], mode=ps.Sync(), servers="thread",
                  communicator=place.communicator()) as fleet:
        before = [param.detach().clone() for param in net.parameters()]
        views = dense.views()
        for name, param in net.named_parameters():
            param.data = views[name]
        for step in range(3):
            dense.push([(param, torch.full_like(param, place.rank + step))
                        for param in net.parameters()])
            fleet.step()
            dense.pull()
            before = [values - 0.5 * (0.5 + step) for values in before]
            assert all(map(torch.equal, net.parameters(), before))
            assert net.weight.data_ptr() == views["weight"].data_ptr()
        fleet.barrier()
    with torch.no_grad():  # its memory is its own again
        for param, values in zip(net.parameters(), before):
            assert torch.equal(param, values)
            param.zero_()
    return [values.numpy() for values in before]


def test_parameters_may_be_the_servers_memory():
    one, other = launching.run(in_place, 2, "fork")
    assert all((a == b).all() for a, b in zip(one, other))


def test_what_is_no_loss_is_refused_by_its_shape():
    net, dense = linear()
    with alone([dense]) as fleet:
        for loss, shape in [(torch.tensor(1.0), r"\(\)"), (net(torch.ones(2, 2)), r"\(2, 1\)")]:
            with pytest.raises(tutti.InvalidArgument, match=f"a tensor of shape {shape}, but a loss"):
                dense.push(loss)
        dense.push({"weight": torch.ones(1, 2).to_sparse()})
        fleet.step()
        dense.pull()
        assert (net.weight == -1).all()


def test_copies_of_a_model_share_its_tables():
    items = table()
    with alone([items]) as fleet:
        model = torch.nn.Sequential(ps.torch.EmbeddingBag(items), torch.nn.Linear(DIM, 1))
        average = copy.deepcopy(model)
        items.push([1], torch.ones(1, DIM))
        fleet.step()
        ids = torch.tensor([[1, 2]])
        torch.testing.assert_close(average(ids), model(ids))
        torch.save(model, io.BytesIO())


def test_what_the_modules_refuse():
    items = table()
    with pytest.raises(tutti.InvalidArgument, match="mode is 'max'"):
        ps.torch.EmbeddingBag(items, "max")
    ids = torch.arange(4)
    with alone([items]):
        bag = ps.torch.EmbeddingBag(items, "mean")
        for arguments, reason in [((ids,), "1 dimensions"), ((ids.view(2, 2), ids), "2 dimensions"),
                                  ((ids.view(2, 2, 1),), "3 dimensions"),
                                  ((ids, torch.tensor([1])), "offsets"),
                                  ((ids, torch.tensor([0, 3, 2])), "offsets"),
                                  ((ids, torch.tensor([0, 9])), "offsets"),
                                  ((ids.view(2, 2), None, torch.ones(2, 2)), "mode 'sum'")]:
            with pytest.raises(tutti.InvalidArgument, match=reason):
                bag(*arguments)
        with pytest.raises(TypeError, match="ids is of float32"):
            bag(torch.ones(2, 2))


def network(items):
    torch.manual_seed(0)
    return torch.nn.Sequential(ps.torch.Embedding(items), torch.nn.Flatten(),
                               torch.nn.Linear(2 * DIM, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))


def batch(worker, step):
    return torch.randint(0, ROWS, (8, 2), generator=torch.Generator().manual_seed(9 * worker + step))


def training(place, by_dist_opt):
    items = table()
    net = network(items)
    dense = ps.Dense(net, optimizer=ps.Sgd(0.5))
    fleet = ps.start([items] if by_dist_opt else [items, dense], mode=ps.Sync(), servers="thread",
                     communicator=place.communicator())
    with fleet:
        dist = opt.DistOpt(opt.SGD(lr=0.5), communicator=fleet.workers) if by_dist_opt else None
        for step in range(4):
            loss = net(batch(place.rank, step)).square().mean()
            if dist:
                dist(loss)  # the backward pass pushes the rows
            elif step % 2:
                dense.push(loss)
            else:
                net.zero_grad()
                loss.backward()
                dense.push()
            fleet.step()
            if not dist:
                dense.pull()
        return ([param.detach().numpy() for param in net.parameters()],
                items.lookup(range(ROWS)))


def both_batches(place):
    """One worker with the batches of two."""
    items = table()
    net = network(items)
    dense = ps.Dense(net, optimizer=ps.Sgd(0.5))
    with ps.start([items, dense], mode=ps.Sync(), servers="thread",
                  communicator=place.communicator()) as fleet:
        for step in range(4):
            dense.push(net(torch.cat([batch(worker, step) for worker in (0, 1)])).square().mean())
            fleet.step()
            dense.pull()
        return ([param.detach().numpy() for param in net.parameters()], items.lookup(range(ROWS)))


@pytest.mark.parametrize("by_dist_opt", [False, True])
def test_workers_in_step_are_one_with_their_batches(by_dist_opt):
    (wanted,) = launching.run(both_batches, 1, "fork")
    for params, rows in launching.run(training, 2, "fork", by_dist_opt):
        for param, of_one in zip(params, wanted[0]):
            torch.testing.assert_close(torch.from_numpy(param), torch.from_numpy(of_one))
        torch.testing.assert_close(torch.from_numpy(rows), torch.from_numpy(wanted[1]))


@pytest.mark.parametrize("rule, wanted", [
    (ps.Adam(0.1), lambda parameters: torch.optim.Adam(parameters, 0.1)),
    (ps.Momentum(0.1, 0.9), lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9))])
def test_a_parameter_without_a_gradient_stays_as_in_pytorch(rule, wanted):
    model = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.ones(3)) for name in "ab"})
    twin_model = copy.deepcopy(model)
    optimizer = wanted(twin_model.parameters())
    net = ps.Dense(model, optimizer=rule)
    with alone([net]) as fleet:
        for names in ("ab", "a", "a", "b", "ab"):
            for either in (model, twin_model):
                either.zero_grad(set_to_none=True)
                sum(either[name].square().sum() for name in names).backward()
            net.push()
            fleet.step()
            net.pull()
            optimizer.step()
            torch.testing.assert_close(dict(model.items()), dict(twin_model.items()))


def test_gradients_may_be_written_where_servers_read_them():
    net = torch.nn.Linear(80, 80, bias=False)
    dense = ps.Dense(net, optimizer=ps.Sgd(1.0), shared=True)
    with alone([dense]) as fleet:
        before = net.weight.detach().clone()
        net.weight.grad = dense.gradients()["weight"]
        for _ in range(3):
            net.zero_grad(set_to_none=False)
            net(torch.ones(1, 80)).sum().backward()
            assert net.weight.grad.data_ptr() == dense.gradients()["weight"].data_ptr()
            dense.push()
            fleet.step()
            dense.pull()
            before = before - 1
            assert torch.equal(net.weight, before)
