"""What ctr_vs_paddle.py measures, in Paddle 1.8.5's fluid: its Python (3.7) runs this, under
paddle.distributed.launch_ps. paddle_ctr.py MODE MODEL STEPS, with MODE sync, half-async, async or
geo, or local without a launcher. Workers print a line of JSON."""

import json
import os
import sys
import time

import numpy as np

os.environ.setdefault("CPU_NUM", "1")

from paddle import fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import (
    StrategyFactory,
    fleet,
)

IDS, DIM, FIELDS, NUMBERS, BATCHES, WARM_UP = 1000000, 16, 26, 13, 16, 20


def ctr(mode):
    label = fluid.data("label", [-1, 1], "int64")
    ids = fluid.data("ids", [-1, FIELDS], "int64")
    numbers = fluid.data("numbers", [-1, NUMBERS], "float32")
    if mode == "geo":  # knows this operator alone
        found, shaped = fluid.layers.embedding, fluid.layers.reshape(ids, [-1, FIELDS, 1])
    else:
        found, shaped = fluid.embedding, ids
    rows = found(shaped, size=[IDS, DIM], is_sparse=True,
                 is_distributed=mode == "async",  # the faster way in this mode, the slower one in sync
                 param_attr=fluid.ParamAttr("emb", initializer=fluid.initializer.Uniform(-0.01, 0.01)))
    x = fluid.layers.concat([fluid.layers.reshape(rows, [-1, FIELDS * DIM]), numbers], axis=1)
    for width in (128, 64):
        x = fluid.layers.fc(x, width, act="relu")
    return label, fluid.layers.fc(x, 2, act="softmax")


def mlp(mode):
    label = fluid.data("label", [-1, 1], "int64")
    x = fluid.data("pixels", [-1, 784], "float32")
    for width in (1024, 1024):
        x = fluid.layers.fc(x, width, act="relu")
    return label, fluid.layers.fc(x, 10, act="softmax")


def batches_of(model, rank):
    random = np.random.RandomState(rank)
    for _ in range(BATCHES):
        if model == "ctr":
            ids = random.randint(0, IDS, (512, FIELDS)).astype("int64")
            labels = ids[:, :1] % 2
            numbers = random.rand(512, NUMBERS).astype("float32") + 2 * labels.astype("float32")
            yield {"ids": ids, "numbers": numbers, "label": labels}
        else:
            labels = random.randint(0, 10, 64).astype("int64")
            pixels = random.rand(64, 784).astype("float32")
            pixels[np.arange(64), labels] += 8
            yield {"pixels": pixels, "label": labels[:, None]}


def train(executor, program, model, loss, rank, steps):
    batches = list(batches_of(model, rank))
    for step in range(WARM_UP):
        executor.run(program, feed=batches[step % BATCHES], fetch_list=[])
    start = time.time()
    for step in range(steps):
        last = executor.run(program, feed=batches[step % BATCHES],
                            fetch_list=[loss.name] if step == steps - 1 else [])
    print(json.dumps({"steps_per_s": steps / (time.time() - start),
                      "loss": float(np.mean(last[0]))}), flush=True)


def main():
    mode, model, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    label, prediction = (ctr if model == "ctr" else mlp)(mode)
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
    optimizer = fluid.optimizer.SGD(0.1)
    executor = fluid.Executor(fluid.CPUPlace())
    if mode == "local":
        optimizer.minimize(loss)
        executor.run(fluid.default_startup_program())
        train(executor, fluid.default_main_program(), model, loss,
              int(os.environ.get("RANK", "0")), steps)
        return
    fleet.init(role_maker.PaddleCloudRoleMaker())
    strategy = {"sync": StrategyFactory.create_sync_strategy,
                "async": StrategyFactory.create_async_strategy,
                "half-async": StrategyFactory.create_half_async_strategy,
                "geo": lambda: StrategyFactory.create_geo_strategy(100)}[mode]()
    fleet.distributed_optimizer(optimizer, strategy).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    if mode == "geo":  # the start-up program sends: there it needs the communicator
        fleet.init_worker()
        executor.run(fleet.startup_program)
    else:
        executor.run(fleet.startup_program)
        fleet.init_worker()
    program = fluid.compiler.CompiledProgram(fleet.main_program).with_data_parallel(
        loss_name=loss.name, build_strategy=strategy.get_build_strategy(),
        exec_strategy=strategy.get_execute_strategy())
    train(executor, program, model, loss, fleet.worker_index(), steps)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
