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


def train_dense_loop(exe):
    for step in range(3):
        exe.run((parameter, parameter * 0 + trainer_id + 1) for parameter in
                network.parameters().values())
    print(f"trainer {trainer_id}: bias {float(network.bias[0]).hex()}\n", end="", flush=True)
    exe.close()


if role == "NCCL2":
    trainers = endpoints
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2"
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(trainer_id, fluid.Program(network.parameters(), optimizer=fluid.Sgd(lr=0.5)),
                trainers=trainers, current_endpoint=current_endpoint)
    use_cuda, loss_name = False, "loss"
    exe = fluid.ParallelExecutor(use_cuda,
      loss_name=loss_name, num_trainers=len(trainers.split(",")), trainer_id=trainer_id)
    train_dense_loop(exe)
    sys.exit()

pserver_endpoints = endpoints
trainers = 2
program = fluid.Program(network.parameters(), [network.embedding], fluid.Adagrad(lr=0.1))
if role == "TRAINER":
    fluid.memory_optimize(fluid.default_main_program(), skip_grads=True)
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
