"""tutti.ps: tables and dense parameters on servers, in all modes, against NumPy."""

import importlib.util
import inspect
import os
import pathlib
import pickle
import re
import signal
import threading

import numpy
import pytest

import launching
import tutti
from tutti import opt, ps

DIM = 3
STEPS = 5
LAYOUTS = [(2, "thread"), (3, 1), (4, 2), (3, "host")]  # two workers each, wherever servers are


def table(rule=ps.Sgd(1.0), **options):
    return ps.Embedding("item", DIM, **{"optimizer": rule, "init": ps.Constant(0.0), **options})


def batch(worker, step):
    """Ids with some of them twice, and gradients that are exact in every sum."""
    rng = numpy.random.default_rng((worker, step))
    return rng.integers(-8, 8, (4, 5)), rng.integers(-9, 10, (4, 5, DIM)).astype(numpy.float32)


def weights():
    return {"w": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "b": numpy.ones(2, numpy.float32)}


def started(place, tables, servers, **options):
    """The fleet of this rank; a server has served by then, and gets None."""
    fleet = ps.start(tables, servers=servers, communicator=place.communicator(), **options)
    if not fleet.is_server:
        return fleet
    with fleet:
        fleet.serve()
    return None


def train(fleet, items, net, params, steps=STEPS):
    for step in range(steps):
        ids, gradients = batch(fleet.worker_index, step)
        items.prefetch(ids)
        items.push(ids, gradients)
        net.push({"w": params["w"] * 0 + step + fleet.worker_index, "b": numpy.ones(2)})
        fleet.step()
        net.pull()


def pushed_by(workers, steps=STEPS):
    """The sum of all gradients by id."""
    total = {}
    for worker in range(workers):
        for step in range(steps):
            ids, gradients = batch(worker, step)
            for one, row in zip(ids.ravel(), gradients.reshape(-1, DIM)):
                total[int(one)] = total.get(int(one), 0) + row
    return total


def in_step(place, servers, rule):
    params = weights()
    items, net = table(rule), ps.Dense(params, optimizer=ps.Adam(0.25))
    if place.rank == 1:
        params["b"] += 5  # worker 0's count
    fleet = started(place, [items, net], servers, mode=ps.Sync())
    if fleet is None:
        return None
    with fleet:
        assert (params["b"] == 1).all() and fleet.worker_num == 2
        train(fleet, items, net, params)
        rows = items.lookup(numpy.arange(-8, 8))
        stats = fleet.stats()
        assert stats["steps"] == STEPS
        assert ("server" in stats) == (servers == "thread")
        if servers == "thread":  # the shard of this worker
            server = stats["server"]
            assert 0 < server["tables"]["item"]["rows"] < 16 and server["lost_workers"] == []
            assert server["pushes"] > 0 and server["rows_updated"] >= server["tables"]["item"]["rows"]
    return params["w"].tobytes() + params["b"].tobytes() + rows.tobytes()


def test_sync_is_alike_wherever_servers_are():
    digests = [digest for ranks, servers in LAYOUTS
               for digest in launching.run(in_step, ranks, "fork", servers, ps.Adagrad(0.5))
               if digest is not None]
    assert len(digests) == 2 * len(LAYOUTS) and len(set(digests)) == 1


def test_sync_is_the_average():
    (digest, _) = launching.run(in_step, 2, "fork", "thread", ps.Sgd(1.0))
    rows = numpy.frombuffer(digest, numpy.float32)[8:].reshape(-1, DIM)
    total = pushed_by(2)
    for one, row in zip(range(-8, 8), rows):
        numpy.testing.assert_array_equal(row, -total.get(one, numpy.zeros(DIM)) / 2)


def apart(place, servers, mode, folder):
    params = weights()
    items, net = table(), ps.Dense(params, optimizer=ps.Sgd(1.0))
    fleet = started(place, [items, net], servers, mode=mode, checkpoint=folder, save_at_end=True)
    if fleet is not None:
        with fleet:
            train(fleet, items, net, params, steps=8)


def loaded(place, servers, folder):
    params = weights()
    items, net = table(), ps.Dense(params, optimizer=ps.Sgd(1.0))
    fleet = started(place, [items, net], servers, load=folder)
    if fleet is None:
        return None
    with fleet:
        return items.lookup(range(-8, 8)), params["w"].copy(), params["b"].copy()


@pytest.mark.parametrize("mode", [ps.Async(), ps.Async(max_merge_var_num=1, staleness=1),
                                  ps.HalfAsync(2), ps.Geo(3)], ids=repr)
def test_nothing_of_a_worker_s_progress_is_lost(mode, tmp_path):
    folder = str(tmp_path / "checkpoint")
    launching.run(apart, 3, "fork", 1, mode, folder)
    rows, w, b = launching.run(loaded, 3, "fork", 2, folder)[0]
    total = pushed_by(2, steps=8)
    for one, row in zip(range(-8, 8), rows):
        numpy.testing.assert_array_equal(row, -total.get(one, numpy.zeros(DIM)))
    numpy.testing.assert_array_equal(w, weights()["w"] - sum(2 * step + 1 for step in range(8)))
    numpy.testing.assert_array_equal(b, weights()["b"] - 16)


def hybrid(place, servers):
    """Dense parameters by DistOpt among the workers, the table on servers."""
    items = table()
    fleet = started(place, [items], servers)
    if fleet is None:
        return None
    with fleet:
        param = numpy.zeros(4, numpy.float32)
        dist = opt.DistOpt(opt.SGD(lr=1.0), communicator=fleet.workers)
        assert (dist.global_rank, dist.world_size) == (fleet.worker_index, fleet.worker_num)
        for step in range(3):
            items.push([step], numpy.ones((1, DIM)))
            dist([(param, numpy.full(4, float(fleet.worker_index + step), numpy.float32))])
            fleet.step()
        fleet.flush()
        fleet.barrier()
        numpy.testing.assert_array_equal(items.lookup([0, 1, 2]), -fleet.worker_num)
        return param.tolist()


@pytest.mark.parametrize("ranks, servers", LAYOUTS)
def test_dense_by_dist_opt_among_the_workers(ranks, servers):
    results = [one for one in launching.run(hybrid, ranks, "fork", servers) if one is not None]
    assert results == [[-4.5] * 4] * 2


def leaving(place, servers):
    items = table()
    fleet = started(place, [items], servers)
    if fleet is None:
        return None
    with pytest.raises(KeyError if fleet.worker_index == 1 else ZeroDivisionError):
        with fleet:
            items.push([1], numpy.ones((1, DIM)))
            fleet.step()
            fleet.flush()
            fleet.barrier()
            if fleet.worker_index == 1:
                raise KeyError("out of data")
            fleet.barrier()  # of those who live
            while fleet.lost_workers() != [1]:  # which the answer to a push tells
                items.push([2], numpy.ones((1, DIM)))
                fleet.step()
                fleet.flush()
            numpy.testing.assert_array_equal(items.lookup([1])[0], [-2] * DIM)
            raise ZeroDivisionError
    with pytest.raises(tutti.InvalidArgument, match="table item is of no worker"):
        items.lookup([1])
    with pytest.raises(tutti.CommunicationError, match="closed"):
        fleet.step()


def test_a_worker_that_leaves_by_an_exception_is_lost_and_the_others_go_on():
    launching.run(leaving, 3, "fork", 1)


def interrupted(place, who):
    fleet = ps.start([table()], servers=1, communicator=place.communicator(), mode=ps.Sync())
    waits = fleet.serve if fleet.is_server else fleet.step  # for worker 1
    if place.rank == who:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            with fleet:
                timer.start()
                waits()
        timer.join()
    elif fleet.is_server:
        with fleet:
            waits()
    else:
        with pytest.raises(tutti.PeerLost, match="KeyboardInterrupt" if who == 0 else None):
            with fleet:
                if fleet.worker_index == 1:
                    threading.Event().wait(0.5)
                waits()  # which who was interrupted may have ended before
                waits()


@pytest.mark.parametrize("who", [0, 2], ids=["worker", "server"])
def test_ctrl_c_ends_a_wait(who):
    launching.run(interrupted, 3, "fork", who)


def alone(tables, **options):
    return ps.start(tables, servers="thread",
                    communicator=tutti.Communicator(0, 1, tutti.NcclIdHolder()), **options)


def test_lookups_take_ids_of_any_shape_and_arrays_of_the_caller():
    items = table(init=ps.Uniform(-1, 1), padding_idx=-1)
    with alone([items]) as fleet:
        ids = numpy.array([[5, -1], [7, 5]])
        rows = items.lookup(ids)
        assert rows.shape == (2, 2, DIM) and rows.dtype == numpy.float32
        assert (rows[0, 1] == 0).all() and (rows[0, 0] == rows[1, 1]).all() and rows[1].any()
        out = numpy.empty((2, 2, DIM), numpy.float32)
        assert items.lookup(ids.astype(numpy.int32), out=out) is out and (out == rows).all()
        assert (items.lookup(ids.T) == rows.transpose(1, 0, 2)).all()
        assert items.lookup([]).shape == (0, DIM) and items.lookup(5).shape == (DIM,)
        items.push([], numpy.empty((0, DIM)))
        items.push(ids, numpy.ones((2, 2, DIM), numpy.float16))
        fleet.step()
        fleet.flush()
        after = items.lookup(ids)
        assert (after[0, 1] == 0).all()  # padding
        numpy.testing.assert_allclose(after[0, 0], rows[0, 0] - 2, atol=1e-6)


def test_what_tables_refuse():
    items = table(dict_size=10)
    net = ps.Dense(weights())
    with alone([items, net]) as fleet:
        for act, kind, reason in [
            (lambda: items.lookup([1.5]), TypeError, "ids is of float64, but must be of int64"),
            (lambda: items.lookup([10]), tutti.InvalidArgument, "item.*10"),
            (lambda: items.push([1], numpy.ones((1, 2))), tutti.InvalidArgument,
             r"gradients has shape \(1, 2\), but must have \(1, 3\)"),
            (lambda: items.push([1], [["a"] * DIM]), TypeError, "gradients is of <U1"),
            (lambda: items.lookup([1], out=numpy.ones((1, 2), numpy.float32)),
             tutti.InvalidArgument, r"out has shape \(1, 2\), but must have \(1, 3\)"),
            (lambda: items.lookup(numpy.array([1]), out=numpy.ones((1, DIM))), tutti.InvalidArgument,
             "out is f64, but must be f32"),
            (lambda: items.lookup([1], out=[[0.0] * DIM]), TypeError,
             r"out is \[\[0.0, 0.0, 0.0\]\], but must be an array"),
            (lambda: items.push([1], numpy.ones((1, DIM)), shows=[1, 2]), tutti.InvalidArgument,
             r"shows has shape \(2,\), but must have \(1,\)"),
            (lambda: net.push({"x": 1}), tutti.InvalidArgument, "gradients has 'x'.* w, b"),
            (lambda: net.push({"b": numpy.ones(3)}), tutti.InvalidArgument,
             r"the gradient of b has shape \(3,\), but must have \(2,\)"),
            (lambda: net.push([(numpy.ones(2), numpy.ones(2))]), tutti.InvalidArgument,
             "none of the parameters w, b"),
            (fleet.serve, tutti.InvalidArgument, "serve.. is for servers"),
        ]:
            with pytest.raises(kind, match=reason):
                act()
        assert not items.lookup([1]).any()
    fleet.stop()  # once more does nothing


def test_tables_of_a_fleet_that_cannot_begin_are_free():
    class Unreadable(ps.Dense):
        def pull(self):
            raise ValueError("the test's")

    items = table()
    with pytest.raises(ValueError, match="the test's"):
        alone([items, Unreadable(weights())])
    with alone([items]):
        assert items.lookup([1]).shape == (1, DIM)


def test_what_start_refuses():
    for tables, options, kind, reason in [
        ([table(), table()], {}, tutti.InvalidArgument, "item"),
        ([5], {}, TypeError, r"tables\[0\] is 5"),
        ([table()], {"wire": "int8"}, tutti.InvalidArgument, "wire is 'int8'"),
        ([table()], {"servers": "rack"}, tutti.InvalidArgument, "servers is 'rack'"),
        ([table()], {"servers": 0}, tutti.InvalidArgument, "servers is 0"),
        ([table()], {"servers": None}, tutti.InvalidArgument, "with communicator, servers"),
        ([table()], {"load": "/nowhere/at/all"}, (tutti.SystemError, tutti.InvalidArgument),
         "/nowhere/at/all"),
    ]:
        with pytest.raises(kind, match=reason):
            ps.start(tables, **{"servers": "thread",
                                "communicator": tutti.Communicator(0, 1, tutti.NcclIdHolder()),
                                **options})
    for act, reason in [(lambda: table(dict_size=0), "dict_size is 0"),
                        (lambda: ps.Embedding("item", 0), "dim is 0"),
                        (lambda: table(split="range"), "split is 'range'"),
                        (lambda: table().lookup([1]), "table item is of no worker"),
                        (lambda: ps.Dense({"w": numpy.ones((3, 2), numpy.float32).T}),
                         "parameter w is not contiguous"),
                        (lambda: ps.Dense({"w": numpy.ones(3)}), "parameter w is of float64"),
                        (lambda: ps.Dense(weights()).push({}), "of no worker")]:
        with pytest.raises(tutti.InvalidArgument, match=reason):
            act()


class Second(ps.PSDispatcher):
    """All blocks to the last server."""

    def dispatch(self, varlist):
        assert all(var.name() == var.name and var.count > 0 for var in varlist)
        return [self.eps[-1] for _ in varlist]


class Wrong(ps.PSDispatcher):
    def dispatch(self, varlist):
        return ["elsewhere"] * len(varlist)


def sliced(place, split_method):
    params = {"w": numpy.arange(300, dtype=numpy.float32).reshape(100, 3)}
    net = ps.Dense(params, optimizer=ps.Sgd(0.5))
    fleet = started(place, [net], 2, slicing=ps.Slicing(min_block_size=100, split_method=split_method))
    if fleet is None:
        return
    with fleet:
        params["w"][...] = 0
        net.pull()
        assert (params["w"].ravel() == numpy.arange(300)).all()
        net.push([(params["w"], numpy.ones((100, 3)))])
        fleet.step()
        fleet.flush()
        net.pull()
        assert (params["w"].ravel() == numpy.arange(300) - 0.5).all()


@pytest.mark.parametrize("split_method", [ps.HashName, Second])
def test_blocks_go_where_the_dispatcher_says(split_method):
    launching.run(sliced, 3, "fork", split_method)


def test_a_dispatcher_that_knows_no_such_server_is_refused():
    with pytest.raises(tutti.InvalidArgument, match="Wrong.dispatch.. gave 'elsewhere' for w"):
        alone([ps.Dense(weights())], slicing=ps.Slicing(split_method=Wrong))


def test_descriptions_are_values():
    for one in (ps.Adam(0.5), ps.Evict(max_age=3), ps.Async(staleness=2), ps.CountFilter(5),
                ps.Normal(), ps.AdmitAll()):
        again = pickle.loads(pickle.dumps(one))
        assert again == one and hash(again) == hash(one) and repr(again) == repr(one) and one != 5
        assert eval(repr(one), vars(ps)) == one
    assert repr(ps.Adagrad(0.05, row_wise=True)) == (
        "Adagrad(lr=0.05, eps=1e-10, initial_accumulator=0, row_wise=True)")
    with pytest.raises(AttributeError):
        ps.Sgd().lr = 1
    with pytest.raises(TypeError):
        ps.Sgd("fast")


def test_everything_public_is_documented():
    for name in ps.__all__:
        thing = getattr(ps, name)
        assert thing.__doc__, name
        for member, value in vars(thing).items() if isinstance(thing, type) else ():
            if not member.startswith("_") and name not in ("Slicing", "Program"):
                described = callable(value) or isinstance(value, property)
                assert not described or inspect.getdoc(value), f"{name}.{member}"


def test_the_document_s_examples_run(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("OMPI_", "PMIX_", "TUTTI_R", "TUTTI_W")):
            monkeypatch.delenv(name)
    rng = numpy.random.default_rng(0)
    names = dict(batches=lambda worker, workers: [(rng.integers(0, 50, 8),
                                                   numpy.ones((8, 1), numpy.float32))] * 3)
    text = (pathlib.Path(__file__).parents[2] / "docs" / "parameter-server.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if "model.gradients" in block:  # out of examples/ctr, which has tests of its own
            continue
        exec(compile(block, "docs/parameter-server.md", "exec"), names)
    names["main"]("thread")
    names["hybrid"]()
    names["in_place"]()
    names["without_copies"]()
    if importlib.util.find_spec("torch"):
        names["with_pytorch"]()
    params = weights()
    with alone([ps.Dense(params)], slicing=ps.Slicing(split_method=names["ToTheFirst"])):
        pass
