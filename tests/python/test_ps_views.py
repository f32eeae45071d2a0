"""tutti.ps: dense parameters that workers read where servers have them, and gradients that they write
where servers read them."""

import gc
import multiprocessing
import os
import signal
import threading
import time

import numpy
import pytest

import launching
import test_ps
import tutti
from tutti import ps

ROWS, COLUMNS = 3000, 3  # cut into a block for each of three servers


def parameters():
    return {"w": numpy.arange(ROWS * COLUMNS, dtype=numpy.float32).reshape(ROWS, COLUMNS),
            "b": numpy.ones(2, numpy.float32), "one": numpy.array(4, numpy.float32)}


def in_step(place, servers):
    params = parameters()
    net = ps.Dense(params, optimizer=ps.Sgd(1.0), name="net", shared=True)
    fleet = test_ps.started(place, [net], servers, mode=ps.Sync())
    if fleet is None:
        return False
    with fleet:
        views = net.views()
        wanted = {f"net.{name}": array.copy() for name, array in params.items()}
        assert {name: view.shape for name, view in views.items()} == {
            name: array.shape for name, array in wanted.items()}
        for step in range(4):
            for name, array in wanted.items():
                assert (views[name] == array).all()
            ones = {name: numpy.full(view.shape, 2 * step + fleet.worker_index)
                    for name, view in views.items()}
            net.push([(views[name], ones[name]) for name in views] if step % 2 else ones)
            fleet.step()
            for name in wanted:
                wanted[name] -= numpy.float32(2 * step + 0.5)
        assert (params["w"] == parameters()["w"]).all()  # a view is no pull
        net.pull()
        assert (params["w"] == wanted["net.w"]).all()
        assert all(again is views[name] for name, again in net.views().items())
        fleet.barrier()
    return True


@pytest.mark.parametrize("ranks, servers", test_ps.LAYOUTS + [(5, 3)])
def test_views_are_the_last_round_wherever_servers_are(ranks, servers):
    assert launching.run(in_step, ranks, "fork", servers).count(True) == 2


@pytest.mark.parametrize("mode", [ps.Async(), ps.HalfAsync(2)])
def test_views_in_async_modes_are_what_servers_have(mode):
    net = ps.Dense(parameters(), optimizer=ps.Sgd(1.0), shared=True)
    with test_ps.alone([net], mode=mode) as fleet:
        views = net.views()
        for _ in range(3):
            net.push({"b": numpy.array([1, 2])})
            fleet.step()
        fleet.flush()
        assert views["b"].tolist() == [-2, -5] and (views["w"] == parameters()["w"]).all()


def test_views_are_read_only_and_outlive_the_fleet():
    net = ps.Dense(parameters(), optimizer=ps.Sgd(1.0), shared=True)
    with test_ps.alone([net], mode=ps.Sync()) as fleet:
        view = net.views()["w"]
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
        net.push({"w": numpy.ones((ROWS, COLUMNS))})
        fleet.step()
    del fleet
    gc.collect()
    assert (view == parameters()["w"] - 1).all()
    with pytest.raises(tutti.InvalidArgument, match="of no worker"):
        net.views()


def test_views_that_cannot_be_are_refused():
    for mode, shared, reason in [(ps.Sync(), False, "DenseParameter::shared of w is false"),
                                 (ps.Geo(), True, "in Geo mode each worker trains a copy")]:
        net = ps.Dense(parameters(), shared=shared)
        with test_ps.alone([net], mode=mode):
            with pytest.raises(tutti.InvalidArgument, match=reason):
                net.views()


def of_a_lost_server(place, has_viewed):
    net = ps.Dense(parameters(), shared=True)
    fleet = ps.start([net], servers=1, communicator=place.communicator(), mode=ps.Async())
    if fleet.is_server:
        threading.Thread(target=lambda: has_viewed.wait() and os.kill(os.getpid(), signal.SIGKILL),
                         daemon=True).start()
        fleet.serve()
    view = net.views()["w"]
    has_viewed.set()
    deadline = time.monotonic() + 20
    with pytest.raises(tutti.PeerLost, match="server 0"):
        while time.monotonic() < deadline:
            net.views()
    assert (view == parameters()["w"]).all()
    fleet.close()
    return (view == parameters()["w"]).all()


def test_views_of_a_lost_server_have_the_last_values():
    event = multiprocessing.get_context("fork").Event()
    (outcome, killed), _ = launching.outcomes_of(of_a_lost_server, 2, "fork", event)
    assert killed is None and outcome[:2] == ("value", True), outcome[-1]


# ------------------------------------------------------------------------------------- gradients


def written(net, value):
    gradients = net.gradients()
    for array in gradients.values():
        array[...] = value
    return gradients


def pushed_in_place(place, servers, mode):
    params = parameters()
    net = ps.Dense(params, optimizer=ps.Sgd(1.0), name="net", shared=True)
    fleet = test_ps.started(place, [net], servers, mode=mode)
    if fleet is None:
        return False
    with fleet:
        first = net.gradients()["net.w"]
        for step in range(1, 7):
            gradients = written(net, 2 * step + 2 * fleet.worker_index)
            if isinstance(mode, ps.Sync):
                assert gradients["net.w"] is first
            net.push(gradients if step % 2 else
                     [(net.parameters[name], gradients[name]) for name in gradients])
            fleet.step()
        fleet.flush()
        fleet.barrier()
        net.pull()
        sums = 2 * (2 * 21) + 6 * 2
        for name, array in parameters().items():
            expected = array - numpy.float32(sums / 2 if isinstance(mode, ps.Sync) else sums)
            assert (params[name] == expected).all()
        fleet.barrier()
    return True


@pytest.mark.parametrize("mode", [ps.Sync(), ps.Async(), ps.HalfAsync(2)])
@pytest.mark.parametrize("ranks, servers", test_ps.LAYOUTS + [(5, 3)])
def test_gradients_are_written_where_servers_read_them(ranks, servers, mode):
    assert launching.run(pushed_in_place, ranks, "fork", servers, mode).count(True) == 2


def test_gradients_that_servers_may_still_read_are_refused():
    net = ps.Dense(parameters(), optimizer=ps.Sgd(1.0), shared=True)
    with test_ps.alone([net], mode=ps.Sync()) as fleet:
        gradients = written(net, 1)
        net.push(gradients)
        with pytest.raises(tutti.InvalidArgument, match="that of w which has been pushed"):
            net.push({"w": gradients["w"]})
        other = written(net, 10)  # is added, by a copy
        assert other["w"] is not gradients["w"]
        net.push(other)
        fleet.step()
        net.pull()
        assert (net.parameters["w"] == parameters()["w"] - 11).all()
        assert net.parameters["b"].tolist() == [-10, -10]


@pytest.mark.parametrize("mode, shared", [(ps.Sync(), False), (ps.Geo(3), True)])
def test_gradients_that_are_copied_are_asked_for_alike(mode, shared):
    net = ps.Dense(parameters(), optimizer=ps.Sgd(1.0), shared=shared)
    with test_ps.alone([net], mode=mode) as fleet:
        for step in range(4):
            net.push(written(net, step))
            fleet.step()
        net.pull()
        assert (net.parameters["w"] == parameters()["w"] - 6).all()
    with pytest.raises(tutti.InvalidArgument, match="of no worker"):
        net.gradients()
