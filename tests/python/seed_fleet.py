"""The script of the document about parameter servers, with its imports and its network alone
changed. It is started once for each process, as there (export ...; python -u train.py --is_cloud=1),
by `tutti run --server_num 2 --worker_num 2`, or by mpiexec, with the role maker that is for that."""

import argparse

from tutti.ps import Adagrad, StrategyFactory, fleet, role_maker

from seed_clicks import Network, reader

parser = argparse.ArgumentParser()
parser.add_argument("--is_cloud", type=int, default=1)
parser.add_argument("--role_maker", default="PaddleCloudRoleMaker")
parser.add_argument("--strategy", default="sync")
parser.add_argument("--save")
parser.add_argument("--model_dir")
args = parser.parse_args()

role = getattr(role_maker, args.role_maker)()
fleet.init(role)

network = Network()
optimizer = Adagrad(lr=0.1)

strategy = getattr(StrategyFactory, f"create_{args.strategy}_strategy")()
optimizer = fleet.distributed_optimizer(optimizer, strategy)
optimizer.minimize(network.parameters(), [network.embedding])

if fleet.is_server():
    fleet.init_server(args.model_dir)
    fleet.run_server()
if fleet.is_worker():
    fleet.init_worker()
    for ids, clicked in reader(fleet.worker_index(), batches=100):
        loss = network.forward(ids, clicked)
        optimizer(network.backward())
    # With its end in one piece: lines of workers that share a pipe do not join.
    print(f"worker {fleet.worker_index()} of {fleet.worker_num()}, servers "
          f"{fleet.server_endpoints(to_string=True)}: loss {loss:.4f}, "
          f"bias {float(network.bias[0]).hex()}\n", end="", flush=True)
    fleet.barrier_worker()
    if args.save and fleet.is_first_worker():
        fleet.save_persistables(args.save)
    fleet.stop_worker()
