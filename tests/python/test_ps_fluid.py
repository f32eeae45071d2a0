"""Fluid's names for parameter servers: what its scripts run around a graph."""

import subprocess
import sys
import threading

import numpy
import pytest

import launching
import tutti
from tutti import opt, ps
from tutti.ps import role_maker

LIMIT = 60  # seconds for one server


def test_what_scripts_run_around_their_training():
    (endpoint,) = launching.free_endpoints(1)

    def transpiled():
        weight = numpy.ones(3, numpy.float32)
        t = ps.DistributeTranspiler()
        t.transpile(0, ps.Program({"w": weight}, optimizer=ps.Sgd(1.0)), pservers=endpoint, trainers=1)
        return t, weight

    server = transpiled()[0].get_pserver_program(endpoint)
    with pytest.raises(tutti.InvalidArgument, match=r"place is CUDAPlace\(0\), but a server's tables lie"):
        ps.Executor(ps.CUDAPlace(0)).run(server)
    serving = threading.Thread(target=lambda: ps.Executor(ps.CPUPlace()).run(server))
    serving.start()
    t, weight = transpiled()
    exe = ps.Executor(ps.CUDAPlace(0))
    exe.run(ps.default_startup_program())
    exe.run(t.get_trainer_program(), {"w": weight})
    assert not weight.any()
    exe.close()  # tells the server, as Fluid's does
    serving.join(LIMIT)
    assert not serving.is_alive()


def test_an_executor_stops_all_that_it_has_run():
    class Program:
        def __init__(self, name):
            self.name = name

        def run(self, fails=False):
            if fails:
                raise ValueError(f"{self.name} does not run")

        def stop(self):
            stopped.append(self.name)
            if self.name != "c":
                raise ValueError(f"{self.name} does not stop")

    stopped = []
    exe = ps.Executor()
    for program in (Program("a"), Program("b"), Program("c")):
        exe.run(program)
        exe.run(program)
    with pytest.raises(ValueError, match="a does not stop"):
        exe.close()
    assert stopped == ["a", "b", "c"]
    exe.close()  # none is left
    assert stopped == ["a", "b", "c"]


def test_an_executor_stops_what_has_joined_and_failed():
    (endpoint,) = launching.free_endpoints(1)

    def transpiled():
        t = ps.DistributeTranspiler()
        t.transpile(0, ps.Program({"w": numpy.ones(3, numpy.float32)}, optimizer=ps.Sgd(1.0)),
                    pservers=endpoint, trainers=1)
        return t

    serving = threading.Thread(target=transpiled().get_pserver_program(endpoint).run)
    serving.start()
    exe = ps.Executor()
    with pytest.raises(tutti.InvalidArgument, match="v"):
        exe.run(transpiled().get_trainer_program(), {"v": numpy.ones(3, numpy.float32)})
    exe.close()
    serving.join(LIMIT)
    assert not serving.is_alive()


def interrupted_first(monkeypatch, worker):
    """The worker's first stop() ends by Ctrl-C."""
    stop, interruptions = worker.stop, [KeyboardInterrupt()]

    def interrupted():
        if interruptions:
            raise interruptions.pop()
        stop()
    monkeypatch.setattr(worker, "stop", interrupted)


def test_fleet_s_programs(monkeypatch, caplog):
    (endpoint,) = launching.free_endpoints(1)

    def initialised(role):
        fleet = type(ps.fleet)()
        weight = numpy.ones(3, numpy.float32)
        fleet.init(role_maker.UserDefinedRoleMaker(0, role, 1, endpoint))
        with pytest.raises(tutti.InvalidArgument, match="distributed_optimizer.* comes first"):
            fleet.main_program
        fleet.distributed_optimizer(ps.Sgd(1.0)).minimize({"w": weight})
        return fleet, weight

    server, _ = initialised(role_maker.Role.SERVER)
    serving = threading.Thread(target=server.run_server)
    serving.start()
    fleet, weight = initialised(role_maker.Role.WORKER)
    exe = ps.Executor(ps.CPUPlace())
    with pytest.raises(tutti.InvalidArgument, match="init_worker.. comes before the first step"):
        exe.run(fleet.main_program, {"w": weight})
    fleet.init_worker()
    exe.run(fleet.startup_program)
    exe.run(fleet.main_program, {"w": weight})
    assert not weight.any()
    for options, reason in [(dict(feed={"x": weight}), "feed is given, but there is no graph"),
                            (dict(fetch_list=["cost"]), "fetch_list is given")]:
        with pytest.raises(tutti.InvalidArgument, match=reason):
            exe.run(fleet.main_program, **options)
    interrupted_first(monkeypatch, fleet._fleet)
    with pytest.raises(KeyboardInterrupt):
        fleet.stop_worker()
    fleet.stop_worker()
    serving.join(LIMIT)
    assert not serving.is_alive()
    assert "lost" not in caplog.text


def test_names_of_a_graph_say_what_there_is_instead():
    with pytest.raises(tutti.InvalidArgument, match="CompiledProgram: there is no graph.*is a step"):
        ps.CompiledProgram(ps.default_main_program()).with_data_parallel("cost")
    with pytest.raises(tutti.InvalidArgument, match="id is -1"):
        ps.CUDAPlace(-1)
    with pytest.raises(tutti.InvalidArgument, match="program is None, but must be fleet.main_program"):
        ps.Executor().run()


def test_what_has_nothing_to_do_says_so_once(tmp_path):
    script = "; ".join(["from tutti import ps"] + 2 * [
        "ps.memory_optimize(ps.default_main_program(), skip_grads=True)", "ps.release_memory(None)"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "memory_optimize does nothing", "release_memory does nothing"], done.stderr


def test_before_transpile_the_default_program_has_nothing_to_run(monkeypatch):
    monkeypatch.setattr(ps.default_main_program(), "_job", None)
    for act in (lambda: ps.Executor().run(ps.default_main_program(), {}), ps.ParallelExecutor,
                ps.default_main_program().stop):
        with pytest.raises(tutti.InvalidArgument, match="has nothing to run: transpile.* comes first"):
            act()


def test_the_default_program_is_the_trainer_s():
    (endpoint,) = launching.free_endpoints(1)
    weight = numpy.full(3, 2, numpy.float32)

    def transpiled(weight):
        t = ps.DistributeTranspiler()
        t.transpile(0, ps.Program({"w": weight}, optimizer=ps.Sgd(1.0)), pservers=endpoint, trainers=1)
        return t

    serving = threading.Thread(target=transpiled(weight.copy()).get_pserver_program(endpoint).run)
    serving.start()
    t = transpiled(weight)
    exe = ps.Executor()
    exe.run(ps.default_main_program(), {"w": numpy.ones(3)})
    ps.ParallelExecutor(main_program=t.get_trainer_program(), trainer_id=0).run({"w": numpy.ones(3)})
    assert not weight.any()
    exe.close()
    serving.join(LIMIT)
    assert not serving.is_alive()


def one_trainer(weight):
    """A transpiler whose only trainer this is, and its server, which serves in a thread."""
    (endpoint,) = launching.free_endpoints(1)
    item = ps.Embedding("item", 3)

    def transpiled(weight, item):
        t = ps.DistributeTranspiler()
        t.transpile(0, ps.Program({"w": weight}, [item], ps.Sgd(1.0)), pservers=endpoint, trainers=1)
        return t

    server = transpiled(weight.copy(), ps.Embedding("item", 3)).get_pserver_program(endpoint)
    serving = threading.Thread(target=server.run)
    serving.start()
    return transpiled(weight, item), item, serving


def ended_by_a_program(t, exe, gradients):
    exe.run(t.get_trainer_program(), gradients)
    exe.run(ps.default_main_program(), gradients)


def ended_by_a_parallel_executor(t, exe, gradients):
    exe.run(ps.default_main_program(), gradients)
    parallel = ps.ParallelExecutor()
    parallel.run(gradients)
    parallel.close()


def ended_by_a_with(t, exe, gradients):
    with t.get_trainer_program():
        exe.run(ps.default_main_program(), gradients)
        exe.run(t.get_trainer_program(), gradients)


@pytest.mark.parametrize("train", [ended_by_a_program, ended_by_a_parallel_executor, ended_by_a_with])
def test_a_trainer_that_has_stopped_does_not_join_again(train):
    weight = numpy.full(3, 2, numpy.float32)
    t, item, serving = one_trainer(weight)
    exe = ps.Executor()
    train(t, exe, {"w": numpy.ones(3)})
    exe.close()
    serving.join(LIMIT)
    assert not serving.is_alive() and not weight.any()
    # Who would join waits until the deadline.
    program = t.get_trainer_program()
    for stop in (program.stop, ps.default_main_program().stop, ps.ParallelExecutor().close, exe.close):
        stop()
    for act in (lambda: program({"w": numpy.ones(3)}), lambda: exe.run(ps.default_main_program(), {}),
                lambda: item.lookup([1]), lambda: program.fleet):
        with pytest.raises(tutti.InvalidArgument, match="until they stop"):
            act()


def test_who_has_not_joined_does_not_join_to_stop():
    (endpoint,) = launching.free_endpoints(1)  # where no server is
    item = ps.Embedding("item", 3)
    t = ps.DistributeTranspiler()
    t.transpile(0, ps.Program(embeddings=[item]), pservers=endpoint, trainers=1)
    ps.default_main_program().stop()
    t.get_trainer_program(wait_port=False)
    ps.default_main_program().stop()
    with pytest.raises(tutti.InvalidArgument, match="until they stop"):
        item.lookup([1])


def test_mode_nccl2_is_left_once():
    weight = numpy.ones(3, numpy.float32)
    t = collective(weight, ps.Sgd(1.0))
    exe = ps.Executor()
    exe.run(t.get_trainer_program(), [(weight, weight.copy())])
    exe.run(ps.default_main_program(), [(weight, weight.copy())])
    exe.close()
    assert not weight.any()


def test_a_parallel_executor_is_of_a_trainer():
    weight = numpy.ones(3, numpy.float32)
    collective(weight, ps.Sgd(1.0))
    for options, reason in [(dict(num_trainers=2), "num_trainers is 2, but transpile.. was told 1"),
                            (dict(trainer_id=1), "trainer_id is 1, but transpile.. was told 0"),
                            (dict(use_cuda="x"), "use_cuda is 'x'"),
                            (dict(main_program=5), "main_program is 5, but must be what")]:
        with pytest.raises(tutti.InvalidArgument, match=reason):
            ps.ParallelExecutor(**options)
    exe = ps.ParallelExecutor(True, loss_name="cost", num_trainers=1, trainer_id=0)
    for options in (dict(feed={"x": weight}), dict(fetch_list=["cost"])):
        with pytest.raises(tutti.InvalidArgument, match="is given, but there is no graph"):
            exe.run(**options)
    exe.run([(weight, weight.copy())])
    assert not weight.any()
    exe.close()


def test_arguments_of_transpile_count_before_the_config():
    config = ps.DistributeTranspilerConfig()
    t = ps.DistributeTranspiler(config)
    t.transpile(0, ps.Program({"w": numpy.zeros(3, numpy.float32)}), pservers="127.0.0.1:1",
                trainers=4, slice_var_up=False, split_method=ps.HashName)
    assert t.config.slicing() == ps.Slicing(False, 8192, ps.HashName)
    assert config.slice_var_up and config.split_method is None


def test_embeddings_of_a_program_may_be_an_iterator():
    t = ps.DistributeTranspiler()
    (endpoint,) = launching.free_endpoints(1)
    item = ps.Embedding("item", 3)
    t.transpile(0, ps.Program(embeddings=iter([item])), pservers=endpoint, trainers=1)
    serving = threading.Thread(target=lambda: t.get_pserver_program(endpoint).run())
    serving.start()
    with t.get_trainer_program():
        assert item.lookup([1]).shape == (1, 3)
    serving.join(LIMIT)


def collective(weight, optimizer):
    """A transpiler in mode nccl2 whose only trainer this is."""
    config = ps.DistributeTranspilerConfig()
    config.mode = "nccl2"
    (endpoint,) = launching.free_endpoints(1)
    t = ps.DistributeTranspiler(config)
    t.transpile(0, ps.Program({"w": weight}, optimizer=optimizer), trainers=endpoint,
                current_endpoint=endpoint)
    return t


@pytest.mark.parametrize("given, same", [
    (ps.Sgd(0.5), lambda: opt.SGD(0.5)),
    (ps.Momentum(0.5, 0.25, True), lambda: opt.SGD(0.5, 0.25, nesterov=True)),
    (ps.Adam(0.5, 0.25, 0.75, 0.125), lambda: opt.Adam(0.5, (0.25, 0.75), 0.125)),
    (ps.Adagrad(0.5, 0.25, 0.125), lambda: opt.Adagrad(0.5, eps=0.25, initial_accumulator_value=0.125)),
    (opt.Adam(0.5), lambda: opt.Adam(0.5)), (opt.AdamW(0.5), lambda: opt.AdamW(0.5)),
    (opt.Adagrad(0.5), lambda: opt.Adagrad(0.5))])
def test_mode_nccl2_has_the_optimizers_of_a_dist_opt(given, same):
    found, wanted = numpy.ones(3, numpy.float32), numpy.ones(3, numpy.float32)
    dist_opt = opt.DistOpt(same(), tutti.NcclIdHolder(), 0, 1)
    with collective(found, given).get_trainer_program() as step:
        for gradient in (numpy.full(3, 2, numpy.float32), numpy.ones(3, numpy.float32)):
            step([(found, gradient)])
            dist_opt([(wanted, gradient)])
    assert found.tolist() == wanted.tolist() != [1, 1, 1]


def test_a_step_in_mode_nccl2_wants_gradients():
    weight = numpy.ones(3, numpy.float32)
    with collective(weight, ps.Sgd(1.0)).get_trainer_program() as step:
        step([(weight, numpy.ones(3, numpy.float32))])
        with pytest.raises(TypeError):  # nothing would be trained
            step()
    assert not weight.any()
