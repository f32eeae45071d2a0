"""The examples of the document about distributed training with Fluid, with their imports and their
network alone changed: python seed_transpiler.py PSERVER|TRAINER|NCCL2 ID ENDPOINTS OWN_ENDPOINT."""

import sys

from tutti import ps as fluid

from seed_clicks import Network, reader

role, trainer_id, endpoints, current_endpoint = sys.argv[1], int(sys.argv[2]), *sys.argv[3:5]
sync_mode = "async" not in sys.argv

network = Network()
exe = fluid.Executor()


def train_loop(program):
    for ids, clicked in reader(trainer_id, batches=100):
        loss = network.forward(ids, clicked)
        program(network.backward())
    print(f"trainer {trainer_id}: loss {loss:.4f}, bias {float(network.bias[0]).hex()}\n", end="",
          flush=True)
    program.stop()


def train_dense_loop(program):
    for step in range(3):
        program((parameter, parameter * 0 + trainer_id + 1) for parameter in
                network.parameters().values())
    print(f"trainer {trainer_id}: bias {float(network.bias[0]).hex()}\n", end="", flush=True)
    program.stop()


if role == "NCCL2":
    trainers = endpoints
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2"
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(trainer_id, fluid.Program(network.parameters(), optimizer=fluid.Sgd(lr=0.5)),
                trainers=trainers, current_endpoint=current_endpoint)
    train_dense_loop(t.get_trainer_program())
    sys.exit()

pserver_endpoints = endpoints
trainers = 2
program = fluid.Program(network.parameters(), [network.embedding], fluid.Adagrad(lr=0.1))
t = fluid.DistributeTranspiler()
t.transpile(trainer_id, program, pservers=pserver_endpoints, trainers=trainers, sync_mode=sync_mode,
            slice_var_up=False)
if role == "PSERVER":
    pserver_prog = t.get_pserver_program(current_endpoint)
    pserver_startup = t.get_startup_program(current_endpoint,
                                            pserver_prog)
    exe.run(pserver_startup)
    exe.run(pserver_prog)
elif role == "TRAINER":
    train_loop(t.get_trainer_program())
