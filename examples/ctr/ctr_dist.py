"""Click-through rates by wide & deep, whose tables of embeddings lie on parameter servers.

    tutti run --server_num 1 --worker_num 2 examples/ctr/ctr_dist.py --mode async
    tutti run -n 2 examples/ctr/ctr_dist.py --servers thread --mode sync    # or mpiexec
    python examples/ctr/ctr_dist.py                                         # one worker
    python examples/ctr/ctr_dist.py --mode local                            # without servers
"""

import os

# The parallelism is in the workers. NumPy's libraries read this when they are loaded.
for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import sys
import time

import alone
import checkpoint
import numpy as np
from auc import auc
from criteo import ClicksFile, count_lines
from examples import CATEGORIES, NUMBERS, batches_of
from made_up import MadeUpClicks
from model import WideAndDeep, logistic_loss, probabilities
from options import MODES, alone_rounds_of, parse_options
from report import Report

import tutti
from tutti import ps

MADE_UP_EXAMPLES = 250_000  # an epoch
EVALUATED = 2048  # examples at once


class Training:
    """A worker's model, its tables, and the fleet that they belong to."""

    def __init__(self, options):
        self.options = options
        self.model = WideAndDeep(CATEGORIES, NUMBERS, options.dim, options.hidden, options.seed)
        if options.mode == "local":
            rule = alone.Adagrad(options.lr)
            self.wide = alone.Table(1, rule, 0.0, 0.0, options.seed)
            self.deep = alone.Table(options.dim, rule, -0.01, 0.01, options.seed)
            self.dense = alone.Dense(self.model.parameters, alone.Adagrad(options.dense_lr))
        else:
            rule = ps.Adagrad(lr=options.lr)
            self.wide = ps.Embedding("wide", 1, optimizer=rule, init=ps.Constant(0.0))
            self.deep = ps.Embedding("deep", options.dim, optimizer=rule, init=ps.Uniform(-0.01, 0.01))
            self.dense = ps.Dense(self.model.parameters, optimizer=ps.Adagrad(lr=options.dense_lr))

    def start(self):
        """Meets the others; the fleet, and how many epochs a checkpoint has behind it."""
        options, parts = self.options, [self.wide, self.deep, self.dense]
        if options.mode == "local":
            if tutti.launched_by():
                with tutti.Communicator() as world:
                    if world.world_size > 1:
                        raise ValueError(f"--mode local: it is for one process, but "
                                         f"{tutti.launched_by()} has started {world.world_size}")
            self.fleet = alone.Alone(parts)
            return self.fleet, 0
        done, path = 0, None
        if options.resume:
            done = checkpoint.last(options.resume)
            path = checkpoint.path_of(options.resume, done)
        servers = options.servers
        if servers is None and not os.environ.get("PADDLE_PSERVERS_IP_PORT_LIST"):
            servers = "thread"  # otherwise the environment says who is a server
        self.fleet = ps.start(parts, mode=MODES[options.mode](options), servers=servers, seed=options.seed,
                              load=path)
        return self.fleet, done

    def look_up(self, batch):
        """Weights and embeddings of the fields."""
        return self.wide.lookup(batch.ids)[..., 0], self.deep.lookup(batch.ids)

    def train(self, batch):
        """Pushes the gradients of one batch; its loss."""
        found = self.model.gradients(*self.look_up(batch), batch.numbers, batch.labels,
                                     1 / self.options.accumulate)
        self.wide.push(batch.ids, found.wide[..., None])
        self.deep.push(batch.ids, found.deep)
        self.dense.push(found.parameters)
        return found.loss

    def train_step(self, batches):
        """Trains on what is one step's of batches; the sum of their losses."""
        self.dense.pull()
        losses = sum(self.train(next(batches)) for _ in range(self.options.accumulate))
        self.fleet.step()
        return losses

    def train_epoch(self, source, first, rounds, alone_rounds, report):
        """The mean loss of this worker's batches, and the examples that all workers did a second. All
        batches of the first `alone_rounds` are worker 0's, one after the other."""
        fleet, options = self.fleet, self.options
        workers, a_step = fleet.worker_num, options.batch_size * options.accumulate
        start, steps, losses = time.monotonic(), 0, 0.0

        def progress(rounds_done):
            rate = rounds_done * workers * a_step / (time.monotonic() - start)
            report.progress(rounds_done, rounds, rate)

        batches = batches_of(source, first, alone_rounds * workers, options.batch_size, 0, 1,
                             options.accumulate)
        for step in range(1, alone_rounds * workers + 1):
            if fleet.worker_index == 0:
                losses += self.train_step(batches)
                steps += 1
                progress(step // workers)
            # A flush, too: no gradient is older than what it is applied to. After each step, since
            # what the others wait for has a deadline.
            fleet.barrier()
        batches = batches_of(source, first + alone_rounds * workers * a_step, rounds - alone_rounds,
                             options.batch_size, fleet.worker_index, workers, options.accumulate)
        for done in range(alone_rounds + 1, rounds + 1):
            losses += self.train_step(batches)
            steps += 1
            progress(done)
        fleet.barrier()
        fleet.flush()  # in GEO mode: gets what the others had pushed by then
        rate = rounds * workers * a_step / (time.monotonic() - start)
        return losses / max(1, steps * options.accumulate), rate

    def evaluate(self, source):
        """AUC and loss of the examples that are held out, from worker 0. The others wait, since they
        would change what is evaluated: part by part, as long as worker 0 gets on, since each wait has
        a deadline."""
        evaluates = self.fleet.worker_index == 0
        if evaluates:
            self.dense.pull()
        logits, labels = [], []
        for first in range(0, self.options.held_out, EVALUATED):
            if evaluates:
                batch = source.read(first, min(EVALUATED, self.options.held_out - first))
                logits.append(self.model.forward(*self.look_up(batch), batch.numbers))
                labels.append(batch.labels)
            self.fleet.barrier()
        if not evaluates:
            return None
        logits, labels = np.concatenate(logits), np.concatenate(labels)
        return auc(labels, probabilities(logits)), logistic_loss(logits, labels)


def open_source(options):
    """Where examples come from, and how many an epoch has."""
    if not options.data:
        return MadeUpClicks(options.seed), options.examples or MADE_UP_EXAMPLES
    there = count_lines(options.data) - options.held_out
    if there < (options.examples or 1):
        raise ValueError(f"{options.data}: only {max(there, 0)} lines are left after --held-out")
    return ClicksFile(options.data), options.examples or there


def work(training, fleet, epochs_done, report):
    """A worker's part: all epochs, with an evaluation after each. Returns their results."""
    options, results = training.options, []
    source, examples = open_source(options)
    rounds = examples // (options.batch_size * options.accumulate * fleet.worker_num)
    if rounds == 0:
        raise ValueError(f"--examples: {examples} are not a batch for each worker")
    for epoch in range(epochs_done, options.epochs):
        report.line(f"Starting Epoch {epoch}:")
        start = time.monotonic()
        # Made-up clicks have no end; a file is read again.
        first = options.held_out + (0 if options.data else epoch * examples)
        alone_rounds = alone_rounds_of(options, rounds, fleet.worker_num) if epoch == 0 else 0
        if alone_rounds > 0:
            report.line(f"Worker 0 makes the first {alone_rounds * fleet.worker_num} steps alone (--alone)")
        loss, rate = training.train_epoch(source, first, rounds, alone_rounds, report)
        result = dict(epoch=epoch, mode=options.mode, workers=fleet.worker_num, train_loss=loss,
                      examples_per_second=rate)
        evaluation = training.evaluate(source)
        if evaluation:
            result["auc"], result["eval_loss"] = evaluation
            if options.save:
                checkpoint.save(options.save, epoch + 1, fleet)
            result.update(seconds=time.monotonic() - start, **fleet.stats())
            report.epoch_ended(result)
            results.append(result)
        fleet.barrier()
    return results


def main(arguments=None):
    options = parse_options(arguments)
    try:
        training = Training(options)
        fleet, epochs_done = training.start()
        with fleet:
            if fleet.is_server:
                return fleet.serve()
            report = Report(fleet.worker_index == 0, options.json)
            if options.resume:
                report.line(f"Resuming {options.resume} after {epochs_done} epochs")
                if epochs_done >= options.epochs:
                    report.line(f"Nothing is left to do: --epochs is {options.epochs}")
            return work(training, fleet, epochs_done, report)
    except (OSError, ValueError, tutti.Error) as error:
        print(f"ctr_dist: {error}", file=sys.stderr)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
