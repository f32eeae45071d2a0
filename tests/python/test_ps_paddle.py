"""Paddle's names for parameter servers: the documents' scripts however they are started, and what of
their options is refused."""

import collections
import contextlib
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading

import numpy
import pytest

import launching
import tutti
from tutti import opt, ps
from tutti.ps import role_maker

HERE = pathlib.Path(__file__).parent
FLEET = HERE / "seed_fleet.py"
TRANSPILER = HERE / "seed_transpiler.py"
LIMIT = 60  # seconds for one job
VARIABLES = ("TRAINING_ROLE", "PADDLE_", "POD_IP", "TUTTI_ROLE", "TUTTI_TICKET")


def ended(processes):
    """What each printed; all must end well."""
    try:
        outputs = [process.communicate(timeout=LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, outputs):
        assert process.returncode == 0, errors
    return [output for output, _ in outputs]


def start(script, *arguments, **variables):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(VARIABLES)}
    return subprocess.Popen([sys.executable, "-u", script, *arguments], text=True,
                            env={**environment, **variables}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def by_hand(*arguments, servers=2, workers=2):
    """The document's processes, workers first; what the workers printed."""
    endpoints = launching.free_endpoints(servers)
    common = {"PADDLE_PSERVERS_IP_PORT_LIST": ",".join(endpoints), "PADDLE_TRAINERS_NUM": str(workers)}
    processes = [start(FLEET, "--is_cloud=1", *arguments, TRAINING_ROLE="TRAINER",
                       PADDLE_TRAINER_ID=str(number), **common) for number in range(workers)]
    for endpoint in endpoints:
        address, port = endpoint.split(":")
        processes.append(start(FLEET, "--is_cloud=1", *arguments, TRAINING_ROLE="PSERVER",
                               POD_IP=address, PADDLE_PORT=port, **common))
    outputs = ended(processes)
    assert outputs[workers:] == [""] * servers
    assert all(",".join(endpoints) in output for output in outputs[:workers])
    return "".join(outputs)


def by_tutti_run(folder, options, *arguments):
    done = subprocess.run([sys.executable, "-m", "tutti.run", *options, FLEET, "--is_cloud=1",
                           *arguments], cwd=folder, text=True, capture_output=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = sorted((folder / "log" / "last").glob("*.log"))
    return "".join(log.read_text() for log in logs)


def by_mpiexec(maker, hosts):
    """On pretended hosts, of which each has so many ranks."""
    contexts = []
    for host, ranks in enumerate(hosts):
        contexts += [":", "-n", str(ranks), "env", f"TUTTI_HOST_ID={host}", sys.executable, "-u", FLEET,
                     "--role_maker", maker]
    done = subprocess.run([*launching.MPIEXEC, *contexts[1:]], text=True, capture_output=True,
                          timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def results(output, workers=2):
    """Loss and bias of each worker."""
    found = dict(re.findall(r"worker (\d+) of \d+, .*: (loss \S+, bias \S+)", output))
    assert len(found) == workers, output
    return [found[str(number)] for number in range(workers)]


def losses(output):
    return [float(result.split()[1].rstrip(",")) for result in results(output)]


def test_the_script_learns_the_same_however_it_is_started(tmp_path):
    wanted = results(by_hand())
    assert wanted[0].split()[-1] == wanted[1].split()[-1]  # the bias of both
    assert results(by_hand(servers=1)) == wanted
    assert results(by_tutti_run(tmp_path, ["--server_num=2", "--worker_num=2"])) == wanted
    servers = f"--servers={','.join(launching.free_endpoints(2))}"
    assert results(by_tutti_run(tmp_path, [servers, "--workers=127.0.0.1,127.0.0.1"])) == wanted


@pytest.mark.parametrize("maker, hosts", [("MPIRoleMaker", [3]), ("MPIRoleMaker", [1, 2]),
                                         ("MPISymetricRoleMaker", [2, 2])])
def test_the_script_learns_the_same_under_mpiexec(maker, hosts):
    assert results(by_mpiexec(maker, hosts)) == results(by_hand())


@pytest.mark.parametrize("strategy", ["sync", "async", "half_async", "geo"])
def test_every_strategy_learns(strategy, tmp_path):
    output = by_tutti_run(tmp_path, ["--server_num=1", "--worker_num=2"], "--strategy", strategy)
    assert max(losses(output)) < 0.6  # it begins with 0.69


def test_save_persistables_and_init_server(tmp_path):
    folder = str(tmp_path / "model")
    first = losses(by_hand("--save", folder, servers=1))
    shown = subprocess.run([sys.executable, "-m", "tutti.ps.inspect", folder], text=True,
                           capture_output=True, timeout=LIMIT, check=True).stdout
    assert "written by 1 server after 100 rounds" in shown and "emb" in shown and "weight" in shown
    assert max(losses(by_hand("--model_dir", folder, servers=2))) < min(first)
    begun = subprocess.Popen([sys.executable, "-m", "tutti.ps.inspect", folder],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    begun.stdout.close()  # before anything is written, as a `head` may that has ended
    assert begun.communicate(timeout=LIMIT)[1] == "" and begun.returncode == 0
    (tmp_path / "model" / "notes").write_text("")
    wrong = subprocess.run([sys.executable, "-m", "tutti.ps.inspect", tmp_path], text=True,
                           capture_output=True, timeout=LIMIT)
    assert wrong.returncode == 1 and str(tmp_path) in wrong.stderr and "Traceback" not in wrong.stderr
    assert wrong.stderr.endswith(f"; these hold one: {folder}\n")


def test_who_is_missing_is_listed_at_the_deadline():
    endpoints = launching.free_endpoints(2)
    common = {"PADDLE_PSERVERS_IP_PORT_LIST": ",".join(endpoints), "PADDLE_TRAINERS_NUM": "1",
              "TUTTI_TIMEOUT": "4"}  # after 3 s it is logged
    address, port = endpoints[0].split(":")
    server = start(FLEET, TRAINING_ROLE="PSERVER", POD_IP=address, PADDLE_PORT=port, **common)
    worker = start(FLEET, TRAINING_ROLE="TRAINER", PADDLE_TRAINER_ID="0", **common)
    errors = [process.communicate(timeout=LIMIT)[1] for process in (worker, server)]
    assert worker.returncode != 0 and server.returncode != 0
    assert f"worker 0 waits for server 1 ({endpoints[1]})" in errors[0], errors[0]
    assert "PeerLost" in errors[0] and endpoints[1] in errors[0].splitlines()[-1], errors[0]


def test_the_transpiler_s_script():
    endpoints = launching.free_endpoints(2)
    outputs = ended(
        [start(TRANSPILER, "TRAINER", str(number), ",".join(endpoints), "none") for number in (0, 1)]
        + [start(TRANSPILER, "PSERVER", "0", ",".join(endpoints), one) for one in endpoints])
    found = re.findall(r"trainer \d: loss (\S+), bias (\S+)", "".join(outputs))
    assert len(found) == 2 and found[0][1] == found[1][1]
    # The same training as that of the other document's script.
    assert [f"loss {loss}, bias {bias}" for loss, bias in found] == results(by_hand(servers=1))


def test_the_transpiler_s_script_in_mode_nccl2():
    endpoints = launching.free_endpoints(2)
    outputs = ended([start(TRANSPILER, "NCCL2", str(number), ",".join(endpoints), one)
                     for number, one in enumerate(endpoints)])
    assert [re.search(r"bias (\S+)", output).group(1) for output in outputs] == [(-2.25).hex()] * 2


def test_without_wait_port_the_first_use_of_a_table_waits():
    endpoint = launching.free_endpoints(1)[0]
    config = ps.DistributeTranspilerConfig()
    config.wait_port = False

    def transpiled():
        table = ps.Embedding("emb", 2, init=ps.Constant(1.0))
        t = ps.DistributeTranspiler(config)
        t.transpile(0, ps.Program(embeddings=[table]), pservers=endpoint, trainers=1)
        return t, table

    t, table = transpiled()
    trainer = t.get_trainer_program()
    assert not table.is_bound and not pickle.loads(pickle.dumps(table)).is_bound
    server = threading.Thread(target=transpiled()[0].get_pserver_program(endpoint).run)
    server.start()
    assert table.lookup([5]).tolist() == [[1.0, 1.0]]
    trainer.stop()
    server.join(LIMIT)
    assert not server.is_alive()


@contextlib.contextmanager
def environment(monkeypatch, **variables):
    with monkeypatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(VARIABLES):
                patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def test_role_makers(monkeypatch):
    role = role_maker.UserDefinedRoleMaker(1, role_maker.Role.WORKER, 3, ["127.0.0.1:1", "127.0.0.1:2"])
    assert role.is_worker() and not role.is_server() and not role.is_first_worker()
    assert (role.worker_index(), role.worker_num(), role.server_index(), role.server_num()) == (1, 3,
                                                                                                -1, 2)
    assert role.get_pserver_endpoints() == ["127.0.0.1:1", "127.0.0.1:2"]
    role = role_maker.UserDefinedRoleMaker(0, numpy.int64(role_maker.Role.SERVER), 3, "127.0.0.1:1")
    assert role.is_server() and role.server_index() == 0
    with environment(monkeypatch, TRAINING_ROLE="PSERVER", PADDLE_TRAINERS_NUM="2",
                     PADDLE_PSERVERS_IP_PORT_LIST="127.0.0.1:1,127.0.0.1:2", POD_IP="127.0.0.1",
                     PADDLE_PORT="2"):
        role = role_maker.PaddleCloudRoleMaker()
        assert role.is_server() and role.server_index() == 1 and role.worker_num() == 2
    for variables, reason in [({}, "TRAINING_ROLE"), ({"TRAINING_ROLE": "BOSS"}, "TRAINING_ROLE is 'BOSS'"),
                              ({"TRAINING_ROLE": "TRAINER"}, "PADDLE_PSERVERS_IP_PORT_LIST")]:
        with environment(monkeypatch, **variables), pytest.raises(tutti.InvalidArgument, match=reason):
            role_maker.PaddleCloudRoleMaker().generate_role()
    for act, reason in [
        (lambda: role_maker.PaddleCloudRoleMaker(is_collective=True), "tutti.opt.DistOpt"),
        (lambda: role_maker.UserDefinedRoleMaker(role=5, server_endpoints="a:1"),
         "role is 5, but must be Role.WORKER, which is 1, or Role.SERVER, which is 2"),
        (lambda: role_maker.UserDefinedRoleMaker(role=True, server_endpoints="a:1"), "role is True"),
        (lambda: role_maker.UserDefinedRoleMaker(), "server_endpoints is empty"),
        (lambda: role_maker.UserDefinedRoleMaker(2, role_maker.Role.WORKER, 2,
                                                 "127.0.0.1:1").generate_role(), "2"),
        (lambda: role_maker.UserDefinedRoleMaker("0", server_endpoints="a:1"), "current_id is '0'"),
        (lambda: role_maker.UserDefinedRoleMaker(worker_num="x", server_endpoints="a:1"),
         "worker_num is 'x'"),
        (lambda: role_maker.UserDefinedRoleMaker(server_endpoints=[5]), r"server_endpoints\[0\] is 5"),
        (lambda: role_maker.UserDefinedRoleMaker(server_endpoints=5), "server_endpoints is 5"),
        (lambda: role_maker.PaddleCloudRoleMaker("x"), "is_collective is 'x'"),
        (lambda: role_maker.MPIRoleMaker("x").generate_role(), "servers is 'x'"),
    ]:
        with pytest.raises((TypeError, tutti.InvalidArgument), match=reason):
            act()


def test_the_order_of_calls():
    fleet = type(ps.fleet)()
    for act, reason in [(fleet.is_worker, "fleet.init"), (fleet.init_worker, "fleet.init"),
                        (lambda: fleet.distributed_optimizer(ps.Sgd()), "fleet.init")]:
        with pytest.raises(tutti.InvalidArgument, match=reason):
            act()
    with pytest.raises(TypeError, match="role_maker is a str"):
        fleet.init("worker")
    role = role_maker.UserDefinedRoleMaker(1, role_maker.Role.WORKER, 3, "127.0.0.1:1")
    for options, reason in [(dict(is_collective=True), "without servers: use tutti.opt.DistOpt"),
                            (dict(is_collective=True, role_maker=role), "is_collective is True"),
                            (dict(strategy=ps.StrategyFactory.create_sync_strategy()),
                             r"distributed_optimizer\(optimizer, strategy\)")]:
        with pytest.raises(tutti.InvalidArgument, match=reason):
            fleet.init(**options)
    fleet.init(role_maker.UserDefinedRoleMaker(1, role_maker.Role.WORKER, 3, "127.0.0.1:1"))
    for files in (list("abcdefg"), tuple("abcdefg"), numpy.array(list("abcdefg")),
                  collections.UserList("abcdefg")):
        assert fleet.split_files(files) == list("de")
    assert fleet.server_endpoints(to_string=True) == "127.0.0.1:1"
    for act, reason in [(lambda: fleet.split_files("abc"), "files is 'abc'"),
                        (lambda: fleet.split_files({"a": 1}), "files is {'a': 1}"),
                        (lambda: fleet.split_files(iter("abc")), "files is .*, but must be a list"),
                        (lambda: fleet.distributed_optimizer(ps.Sgd()).minimize(5), "parameters is 5"),
                        (lambda: fleet.distributed_optimizer(ps.Sgd()).minimize((), ["x"]),
                         r"embeddings\[0\] is 'x'")]:
        with pytest.raises(TypeError, match=reason):
            act()
    for act, reason in [(fleet.run_server, "is for servers"), (fleet.init_server, "is for servers"),
                        (fleet.init_worker, "minimize"), (fleet.stop_worker, "init_worker.. comes"),
                        (fleet.distributed_optimizer(ps.Sgd()), "init_worker.. comes")]:
        with pytest.raises(tutti.InvalidArgument, match=reason):
            act()
    fleet.init(role_maker.UserDefinedRoleMaker(0, role_maker.Role.SERVER, 3, "127.0.0.1:1"))
    with pytest.raises(tutti.InvalidArgument, match="'/nowhere', which is no folder"):
        fleet.init_server("/nowhere")
    with pytest.raises(tutti.InvalidArgument, match="is for workers"):
        fleet.init_worker()


def test_a_role_that_is_not_said_is_that_of_the_environment(monkeypatch):
    with environment(monkeypatch, TRAINING_ROLE="TRAINER", PADDLE_TRAINERS_NUM="2", PADDLE_TRAINER_ID="1",
                     PADDLE_PSERVERS_IP_PORT_LIST="127.0.0.1:1"):
        fleet = type(ps.fleet)()
        fleet.init()
        assert fleet.is_worker() and (fleet.worker_index(), fleet.worker_num()) == (1, 2)


def test_strategies_and_optimizers():
    modes = {"sync": ps.Sync(), "async": ps.Async(), "half_async": ps.HalfAsync(), "geo": ps.Geo(100)}
    for name, mode in modes.items():
        assert getattr(ps.StrategyFactory, f"create_{name}_strategy")().mode == mode
    strategy = ps.StrategyFactory.create_async_strategy()
    strategy.set_trainer_runtime_config({"communicator_max_merge_var_num": 7})
    assert strategy.mode == ps.Async(max_merge_var_num=7)
    with pytest.raises(tutti.InvalidArgument, match="'communicator_fake_rpc'"):
        strategy.set_trainer_runtime_config({"communicator_fake_rpc": True})
    with pytest.raises(tutti.InvalidArgument, match="create_async_strategy"):
        ps.StrategyFactory.create_geo_strategy().set_trainer_runtime_config({})
    for act, reason in [
        (lambda: strategy.set_trainer_runtime_config(5), "config is 5"),
        (lambda: strategy.set_trainer_runtime_config({"communicator_send_queue_size": "x"}),
         "communicator_send_queue_size is 'x'"),
        (lambda: strategy.set_program_config(None), "config is None"),
        (lambda: ps.StrategyFactory.create_geo_strategy("x"), "update_frequency is 'x'"),
    ]:
        with pytest.raises(TypeError, match=reason):
            act()
    fleet = type(ps.fleet)()
    fleet.init(role_maker.UserDefinedRoleMaker(0, role_maker.Role.WORKER, 3, "127.0.0.1:1"))
    for given, rule in [(opt.SGD(0.5), ps.Sgd(0.5)), (ps.Adam(), ps.Adam()),
                        (opt.SGD(0.5, momentum=0.25, nesterov=True), ps.Momentum(0.5, 0.25, True)),
                        (opt.Adam(0.5, (0.25, 0.75), 0.125), ps.Adam(0.5, 0.25, 0.75, 0.125)),
                        (opt.AdamW(0.5, weight_decay=0), ps.Adam(0.5)),
                        (opt.Adagrad(0.5, eps=0.25, initial_accumulator_value=0.125),
                         ps.Adagrad(0.5, 0.25, 0.125))]:
        assert fleet.distributed_optimizer(given).rule == rule
    for given, kind, reason in [(opt.SGD(weight_decay=0.5), tutti.InvalidArgument, "weight_decay is 0.5"),
                                (opt.AdamW(), tutti.InvalidArgument, "weight_decay is 0.01"),
                                (opt.Adagrad(lr_decay=0.5), tutti.InvalidArgument, "lr_decay is 0.5"),
                                ("adam", TypeError, "optimizer is a str")]:
        with pytest.raises(kind, match=reason):
            fleet.distributed_optimizer(given)
    config = ps.DistributeTranspilerConfig()
    assert fleet.distributed_optimizer(ps.Sgd(), config).strategy.mode == ps.Sync()
    config.half_async = True  # beside sync_mode, which is so by default
    with pytest.raises(tutti.InvalidArgument, match="half_async is True, but sync_mode is, too"):
        fleet.distributed_optimizer(ps.Sgd(), config)
    for name, value, mode in [("sync_mode", False, ps.HalfAsync()), ("half_async", False, ps.Async()),
                              ("geo_sgd_need_push_nums", 7, ps.Async()),
                              ("geo_sgd_mode", True, ps.Geo(7))]:
        setattr(config, name, value)
        assert fleet.distributed_optimizer(ps.Sgd(), config).strategy.mode == mode, name


def test_options_that_are_refused():
    config = ps.DistributeTranspilerConfig()
    for name, value, reason in [("enable_dc_asgd", True, "staleness"), ("mode", "mpi", "mode is 'mpi'"),
                                ("nccl_comm_num", 2, "nccl_comm_num is 2"), ("split_method", 5, "is 5"),
                                ("use_hierarchical_allreduce", True, "several hosts"),
                                ("collective_mode", "local_sgd", "partialUpdate"),
                                ("slice_var_up", "no", "slice_var_up is 'no'"),
                                ("min_block_size", -3, "min_block_size is -3"),
                                ("completely_not_async", True, "sync_mode=True")]:
        with pytest.raises(tutti.InvalidArgument, match=reason):
            setattr(config, name, value)
    config.enable_dc_asgd, config.nccl_comm_num = False, 1
    config.runtime_split_send_recv = True  # what is done anyway
    with pytest.raises(AttributeError, match="no option 'slice_var'"):
        config.slice_var = True
    program = ps.Program({"w": numpy.zeros(3, numpy.float32)}, [], ps.Sgd())
    for options, reason in [
        (dict(program=None), "program is a NoneType.*ps.Program"),
        (dict(trainers="127.0.0.1:1,127.0.0.1:2"), "trainers is '127.*nccl2"),
        (dict(trainers=0), "trainers is 0"),
        (dict(trainers=True), "trainers is True"),
        (dict(trainer_id="0"), "trainer_id is '0'"),
        (dict(sync_mode="no"), "sync_mode is 'no'"),
        (dict(pservers=["127.0.0.1:1"]), r"pservers is \['127.0.0.1:1'\], but must be of str"),
        (dict(pservers=""), "pservers is '', but must be 'host:port'"),
        (dict(pservers="127.0.0.1:1,"), "pservers is '127.0.0.1:1,'"),
        (dict(program=program._replace(embeddings=5)), "embeddings is 5"),
        (dict(program=program._replace(embeddings=["item"])), r"embeddings\[0\] is 'item'"),
        (dict(startup_program=program), "startup_program"),
    ]:
        with pytest.raises((TypeError, tutti.InvalidArgument), match=reason):
            ps.DistributeTranspiler().transpile(**{"trainer_id": 0, "program": program, **options})
    with pytest.raises(TypeError, match="config is {}, but must be of DistributeTranspilerConfig"):
        ps.DistributeTranspiler({})
    t = ps.DistributeTranspiler()
    with pytest.raises(tutti.InvalidArgument, match="transpile.. comes first"):
        t.get_trainer_program()
    t.transpile(0, program, pservers="127.0.0.1:1, 127.0.0.1:2")
    with pytest.raises(tutti.InvalidArgument, match="endpoint is '127.0.0.1:3', but pservers are"):
        t.get_pserver_program("127.0.0.1:3")
    with pytest.raises(tutti.InvalidArgument, match="was called before"):
        t.transpile(0, program)
    main, startup = t.get_pserver_programs("127.0.0.1:2")
    ps.Executor().run(startup)
    config = ps.DistributeTranspilerConfig()
    config.mode = "nccl2"
    pair = "127.0.0.1:1,127.0.0.1:2"
    for options, reason in [
        (dict(trainers=2), "trainers is 2"),
        (dict(trainers=pair, current_endpoint="127.0.0.1:2"), "current_endpoint is '127.0.0.1:2'"),
        (dict(trainers=pair, current_endpoint="127.0.0.1:1", sync_mode=False), "sync_mode is False"),
        (dict(trainers=pair, current_endpoint="127.0.0.1:1",
              program=program._replace(optimizer=ps.Adagrad(row_wise=True))), "row_wise is True"),
        (dict(trainers=pair, current_endpoint="127.0.0.1:1",
              program=program._replace(embeddings=[ps.Embedding("item", 3)])), "no servers"),
    ]:
        with pytest.raises(tutti.InvalidArgument, match=reason):
            ps.DistributeTranspiler(config).transpile(0, **{"program": program, **options})
    for name, value in [("geo_sgd_mode", True), ("print_log", True), ("slice_var_up", False)]:
        config = ps.DistributeTranspilerConfig()
        config.mode = "nccl2"
        setattr(config, name, value)
        with pytest.raises(tutti.InvalidArgument, match=f"{name} is {value}, but mode 'nccl2'"):
            ps.DistributeTranspiler(config).transpile(0, program, trainers=pair,
                                                      current_endpoint="127.0.0.1:1")
    config = ps.DistributeTranspilerConfig()
    config.collective_mode = "grad_allreduce"
    with pytest.raises(tutti.InvalidArgument, match="collective_mode is 'grad_allreduce', but"):
        ps.DistributeTranspiler(config).transpile(0, program)
