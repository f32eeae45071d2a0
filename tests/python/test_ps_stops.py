"""tutti.ps: a worker's stop(), and what Ctrl-C leaves of it."""

import concurrent.futures
import multiprocessing
import os
import pathlib
import signal
import threading
import time

import numpy
import pytest

import launching
import tutti
from test_ps_fluid import LIMIT, interrupted_first, one_trainer
from tutti import ps

STOPS_OF_A_TRAINER = [
    lambda t, exe: t.get_trainer_program().stop, lambda t, exe: ps.default_main_program().stop,
    lambda t, exe: ps.ParallelExecutor().close, lambda t, exe: exe.close]


def check_has_left(transpiler, serving, caplog):
    """Its server has ended, and has not taken it for lost."""
    serving.join(LIMIT)
    assert not serving.is_alive()
    with pytest.raises(tutti.InvalidArgument, match="until they stop"):
        transpiler.get_trainer_program().fleet
    assert "lost" not in caplog.text


@pytest.mark.parametrize("stop_of", STOPS_OF_A_TRAINER)
def test_a_stop_that_is_interrupted_is_called_again(stop_of, monkeypatch, caplog):
    weight = numpy.full(3, 2, numpy.float32)
    t, item, serving = one_trainer(weight)
    exe = ps.Executor()
    exe.run(t.get_trainer_program(), {"w": numpy.ones(3)})
    stop = stop_of(t, exe)
    interrupted_first(monkeypatch, t.get_trainer_program().fleet)
    with pytest.raises(KeyboardInterrupt):
        stop()
    exe.run(t.get_trainer_program(), {"w": numpy.ones(3)})  # it has not left
    assert not weight.any()
    stop()
    check_has_left(t, serving, caplog)


class InterruptedAfter:
    """A core.Fleet: Ctrl-C comes when its stop() has just returned."""

    def __init__(self, core):
        self._core = core

    def __getattr__(self, name):
        return getattr(self._core, name)

    def stop(self):
        self._core.stop()
        raise KeyboardInterrupt


@pytest.mark.parametrize("stop_of", STOPS_OF_A_TRAINER)
def test_a_stop_that_has_ended_when_it_is_interrupted(stop_of, monkeypatch, caplog):
    t, _, serving = one_trainer(numpy.full(3, 2, numpy.float32))
    exe = ps.Executor()
    exe.run(t.get_trainer_program(), {"w": numpy.ones(3)})
    stop = stop_of(t, exe)
    fleet = t.get_trainer_program().fleet
    monkeypatch.setattr(fleet, "_fleet", InterruptedAfter(fleet._fleet))
    with pytest.raises(KeyboardInterrupt):
        stop()
    stop()
    check_has_left(t, serving, caplog)


class Stoppable:
    """A program whose stop() ends by `failures` first, the last of them first."""

    def __init__(self, *failures):
        self.failures, self.stopped = list(failures), 0

    def run(self):
        pass

    def stop(self):
        if self.failures:
            raise self.failures.pop()
        self.stopped += 1


def executor_of(*programs):
    exe = ps.Executor()
    for program in programs:
        exe.run(program)
    return exe


def test_an_executor_stops_the_rest_when_it_is_interrupted():
    programs = Stoppable(), Stoppable(KeyboardInterrupt()), Stoppable()
    exe = executor_of(*programs)
    with pytest.raises(KeyboardInterrupt):
        exe.close()
    exe.close()
    assert [program.stopped for program in programs] == [1, 1, 1]


def test_an_executor_raises_the_first_error_though_it_is_interrupted():
    exe = executor_of(Stoppable(tutti.Error("no memory")), Stoppable(KeyboardInterrupt()),
                      Stoppable(tutti.Error("none either")))
    with pytest.raises(KeyboardInterrupt):
        exe.close()
    with pytest.raises(tutti.Error, match="no memory"):
        exe.close()
    exe.close()


def test_an_executor_is_closed_by_two_threads():
    both = threading.Barrier(2)

    class Program(Stoppable):
        def stop(self):
            super().stop()
            both.wait(LIMIT)

        def __eq__(self, other):
            return isinstance(other, Program)

    programs = Program(), Program()
    exe = executor_of(*programs)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        for closed in [threads.submit(exe.close) for _ in range(2)]:
            closed.result(LIMIT)
    assert [program.stopped for program in programs] == [2, 2]


class Failing:
    """A core.Fleet whose stop() fails when it has left, and whose close() is interrupted first."""

    def __init__(self, core):
        self._core, self._interruptions = core, [KeyboardInterrupt()]

    def __getattr__(self, name):
        return getattr(self._core, name)

    def stop(self):
        self._core.stop()
        raise tutti.Error("no memory")

    def close(self, error):
        if self._interruptions:
            raise self._interruptions.pop()
        self._core.close(error)


def alone():
    return ps.start([ps.Embedding("item", 3)], servers="thread",
                    communicator=tutti.Communicator(0, 1, tutti.NcclIdHolder()))


def test_a_worker_whose_stop_has_failed_has_left(monkeypatch):
    with alone() as fleet:
        monkeypatch.setattr(fleet, "_fleet", InterruptedAfter(fleet._fleet))
        with pytest.raises(KeyboardInterrupt):
            fleet.stop()
        fleet.stop()
    fleet = alone()
    core = fleet._fleet
    monkeypatch.setattr(fleet, "_fleet", Failing(core))
    with pytest.raises(tutti.Error, match="no memory"):
        fleet.stop()
    fleet.stop()
    core.close()


def test_the_error_of_a_stop_outlives_an_interruption_of_what_follows(monkeypatch):
    fleet = alone()
    monkeypatch.setattr(fleet, "_fleet", Failing(fleet._fleet))
    with pytest.raises(KeyboardInterrupt):
        fleet.leave()
    with pytest.raises(tutti.Error, match="no memory"):
        fleet.leave()
    fleet.leave()


class WithoutMemory(Failing):
    """As the last, but what fails is the process' memory."""

    def stop(self):
        self._core.stop()
        raise MemoryError


def test_a_worker_without_memory_for_its_stop_has_left(monkeypatch):
    fleet = alone()
    monkeypatch.setattr(fleet, "_fleet", WithoutMemory(fleet._fleet))
    with pytest.raises(KeyboardInterrupt):
        fleet.leave()
    with pytest.raises(MemoryError):
        fleet.leave()
    fleet.leave()


@pytest.mark.parametrize("stop_of", STOPS_OF_A_TRAINER)
def test_a_trainer_without_memory_for_its_stop_has_left(stop_of, monkeypatch, caplog):
    t, _, serving = one_trainer(numpy.full(3, 2, numpy.float32))
    exe = ps.Executor()
    exe.run(t.get_trainer_program(), {"w": numpy.ones(3)})
    stop = stop_of(t, exe)
    fleet = t.get_trainer_program().fleet
    core = WithoutMemory(fleet._fleet)
    core._interruptions.clear()
    monkeypatch.setattr(fleet, "_fleet", core)
    with pytest.raises(MemoryError):
        stop()
    stop()
    check_has_left(t, serving, caplog)


def test_the_error_of_a_stop_is_raised_to_one_of_two_threads(monkeypatch):
    class Slow(Failing):
        def __init__(self, core):
            super().__init__(core)
            self._interruptions = []

        def stop(self):
            stopping.set()
            time.sleep(0.2)  # the other thread is there meanwhile
            super().stop()

    stopping = threading.Event()
    t, _, serving = one_trainer(numpy.full(3, 2, numpy.float32))
    exe = ps.Executor()
    exe.run(t.get_trainer_program(), {"w": numpy.ones(3)})
    fleet = t.get_trainer_program().fleet
    monkeypatch.setattr(fleet, "_fleet", Slow(fleet._fleet))
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        first = threads.submit(exe.close)
        assert stopping.wait(LIMIT)
        both = [first.exception(LIMIT) for first in (threads.submit(exe.close), first)]
    assert [str(error) for error in both if error is not None] == ["no memory"]
    serving.join(LIMIT)
    assert not serving.is_alive()


def name_this_thread(name):
    pathlib.Path("/proc/self/comm").write_text(name)


def interrupt_once_it_sleeps(process, name):
    """Ctrl-C for a process once its first thread has this name, and sleeps."""
    until = time.monotonic() + LIMIT
    while not pathlib.Path(f"/proc/{process}/stat").read_text().startswith(f"{process} ({name}) S"):
        assert time.monotonic() < until
    os.kill(process, signal.SIGINT)


def waits_in_a_stop(place):
    """Worker 0 ends a round by stop(), for which it waits, and is interrupted; the other ends it, too."""
    item = ps.Embedding("item", 3)
    world = place.communicator()
    fleet = ps.start([item], servers="thread", communicator=world, mode=ps.Sync(),
                     timeout=20)
    item.push(numpy.arange(50), numpy.ones((50, 3)))
    processes = numpy.empty(2, numpy.int64)
    world.all_gather(numpy.array([os.getpid()]), processes)
    if place.rank == 0:
        with pytest.raises(KeyboardInterrupt):
            name_this_thread("stops")
            fleet.stop()
        assert not fleet.has_stopped
    else:
        interrupt_once_it_sleeps(processes[0], "stops")
    world.barrier()
    if place.rank == 1:
        fleet.step()  # waits for nobody: that stop() had begun
    world.barrier()
    fleet.leave()
    assert fleet.has_stopped


def test_a_stop_that_waits_is_interrupted_and_called_again():
    launching.run(waits_in_a_stop, 2, "fork")


def test_a_stop_that_fails_has_left():
    (endpoint,) = launching.free_endpoints(1)

    def transpiled():
        t = ps.DistributeTranspiler()
        t.transpile(0, ps.Program({"w": numpy.ones(3, numpy.float32)}), pservers=endpoint, trainers=1)
        return t

    server = multiprocessing.get_context("fork").Process(
        target=transpiled().get_pserver_program(endpoint).run)
    server.start()
    program = transpiled().get_trainer_program()
    program.run({"w": numpy.ones(3)})
    fleet = program.fleet
    server.kill()
    server.join(LIMIT)
    fleet._tables[0].push({"w": numpy.ones(3)})
    with pytest.raises(tutti.PeerLost, match="server 0"):
        program.stop()
    assert fleet._fleet.has_stopped
    program.stop()
