"""The command line, and what it says of tables and modes."""

import argparse

from tutti import ps

MODES = {
    "sync": lambda options: ps.Sync(),
    "async": lambda options: ps.Async(send_queue_size=options.queue or 1,
                                      max_merge_var_num=options.queue or 1,
                                      staleness=options.staleness),
    "half-async": lambda options: ps.HalfAsync(),
    "geo": lambda options: ps.Geo(push_steps=options.push_steps or 10),
    "local": None,
}
ALONE = 200  # steps, in these modes:
ALONE_MODES = ("async", "half-async")
OF_MODES = {"alone": ALONE_MODES, "staleness": ("async",), "queue": ("async",), "push_steps": ("geo",)}


def _number(kind, low, high=1e9):
    def parse(text):
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not from {low} to {high:g}")
        return value

    parse.__name__ = "number"
    return parse


def _servers(text):
    return text if text in ("host", "thread") else _number(int, 1, 1000)(text)


def _widths(text):
    return [_number(int, 1, 65536)(part) for part in text.split(",")]


def parse_options(arguments=None):
    """The options in a list of words, by default those of the command line."""
    parser = argparse.ArgumentParser(
        description="Trains wide & deep on clicks, with tables of embeddings on parameter servers.")
    add = parser.add_argument
    add("--mode", choices=tuple(MODES), default="async",
        help="when workers push and what they wait for; local: one process without servers, whose "
             "tables are NumPy's (async)")
    add("--queue", type=_number(int, 1, 1000), metavar="N",
        help="async: batches that wait at most for servers that are behind; as many are merged (1)")
    add("--alone", type=_number(int, 0), metavar="N",
        help="async and half-async: steps at the beginning that are worker 0's, none of them made with "
             "old values, while the others wait (200, but at most a quarter of the first epoch; with "
             "--staleness 0)")
    add("--staleness", type=_number(int, 1), metavar="N",
        help="async: steps that a worker may be ahead of the slowest, so that none makes any alone "
             "(no limit)")
    add("--push-steps", type=_number(int, 1), metavar="N",
        help="geo: batches between two exchanges with the servers (10)")
    add("--servers", type=_servers, metavar="N|host|thread",
        help="the last N ranks are servers, or the last of each host, or each worker has one as a "
             "thread; by default as tutti run's --server_num says, or else thread")
    add("--data", metavar="FILE", help="clicks in Criteo's format, plain or .gz; else made-up ones")
    add("--examples", type=_number(int, 1, 1e12), metavar="N",
        help="examples an epoch: of made-up ones that many new ones (250000), of a file the first "
             "after those held out (all)")
    add("--held-out", type=_number(int, 100), default=50_000, metavar="N",
        help="the first examples are for evaluation (50000)")
    add("--epochs", type=_number(int, 1), default=4, metavar="N",
        help="epochs in all, with those before --resume (4)")
    add("--batch-size", type=_number(int, 1, 1e6), default=512, metavar="N",
        help="examples per worker and batch (512)")
    add("--accumulate", type=_number(int, 1, 1e6), default=1, metavar="N",
        help="batches that a worker pushes, averaged, as one step (1)")
    add("--dim", type=_number(int, 1, 4096), default=16, metavar="N",
        help="of the embeddings (16)")
    add("--hidden", type=_widths, default=[128, 64], metavar="N,...",
        help="widths of the hidden layers (128,64)")
    add("--lr", type=_number(float, 0), default=0.05, metavar="X",
        help="learning rate of the tables, which Adagrad trains (0.05)")
    add("--dense-lr", type=_number(float, 0), default=0.01, metavar="X",
        help="learning rate of all else, which Adagrad trains, too (0.01)")
    add("--seed", type=_number(int, 0, 2**63 - 1), default=0, metavar="N",
        help="of initial values and made-up clicks (0)")
    add("--save", metavar="DIR", help="keep a checkpoint of the last epoch in DIR")
    add("--resume", metavar="DIR", help="go on from there, with the options of then")
    add("--json", metavar="FILE", help="write one JSON object per epoch")
    options = parser.parse_args(arguments)
    for name, modes in OF_MODES.items():
        if getattr(options, name) and options.mode not in modes:
            parser.error(f"--{name.replace('_', '-')}: it is for the mode{'s' if modes[1:] else ''} "
                         f"{' and '.join(modes)}, not for {options.mode}")
    if options.alone and options.staleness:
        parser.error("--alone, --staleness: by the steps that worker 0 makes alone it is ahead of the others")
    if options.mode == "local":
        for name in ("servers", "save", "resume"):
            if getattr(options, name):
                parser.error(f"--{name}: --mode local has no servers")
    return options


def alone_rounds_of(options, rounds, workers):
    """Of the first epoch's rounds, those whose steps are all worker 0's."""
    if options.alone is not None:
        return min(rounds, -(-options.alone // workers))
    if options.mode not in ALONE_MODES or options.staleness:
        return 0
    return min(rounds // 4, -(-ALONE // workers))
