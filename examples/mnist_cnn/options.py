"""The command line, with the options of the C++ program. Its --ranks N is mnist_multiprocess.py N."""

import argparse

from tutti.opt import MODES

MOST_EPOCHS = 1_000_000
SPARS = 0.05


class OptionError(ValueError):
    """Options that make no sense; says which and why."""


class Parser(argparse.ArgumentParser):
    """Leaves it to the ranks to end the program, which they do together."""

    def error(self, message):
        raise OptionError(message)


def number(kind, low, high=1e9):
    """What understands a number of a range."""

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {low} to {high:g}")
        return value

    return parse


def make_parser():
    parser = Parser(
        description="Trains a CNN on MNIST, data-parallel, with tutti in NumPy.", allow_abbrev=False)
    add = parser.add_argument
    add("--data-dir", metavar="DIR",
        help="MNIST's IDX files, plain or .gz; else $TUTTI_MNIST_DIR, else data/mnist")
    add("--epochs", type=number(int, 1, MOST_EPOCHS), default=10, metavar="N",
        help="epochs in all, with those before --resume (10)")
    add("--batch-size", type=number(int, 1, 4096), default=64, metavar="N",
        help="images per rank and step (64)")
    add("--lr", type=number(float, 0), default=0.005, metavar="X", help="learning rate (0.005)")
    add("--momentum", type=number(float, 0), default=0.9, metavar="X", help="momentum (0.9)")
    add("--weight-decay", type=number(float, 0), default=1e-5, metavar="X",
        help="weight decay (1e-5)")
    add("--seed", type=number(int, 0, 2**64 - 1), default=0, metavar="N",
        help="initial weights and shuffling (0)")
    add("--dist-option", choices=tuple(MODES), default="fp32", help="how the ranks keep in step")
    add("--spars", type=number(float, 0), metavar="S",
        help="sparseTopK: the fraction of a bucket that is sent; sparseThreshold: the least "
             "magnitude that is sent (0.05)")
    add("--momentum-correction", action="store_true",
        help="sparse modes: apply the momentum before the selection")
    add("--clip-norm", type=number(float, 0), default=0.0, metavar="X",
        help="sparse modes: clip the norm of each gradient to X / sqrt(ranks) (0: no)")
    add("--warm-up-epochs", type=number(int, 0, 1e6), default=0, metavar="N",
        help="sparseTopK: send more during the first N epochs (0)")
    add("--device", choices=("auto", "cpu"), default="auto", help="where the model lies: the CPU")
    add("--save", metavar="FILE", help="write a checkpoint after each epoch")
    add("--resume", metavar="FILE", help="go on from a checkpoint, with its seed")
    add("--json", metavar="FILE", help="write one JSON object per epoch")
    add("--plot", nargs="+", metavar="FILE",
        help="draw the first FILE (an image) from JSON files, and do nothing else")
    return parser


def parse_options(arguments=None):
    """The options in a list of words, by default those of the command line."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    mode = options.dist_option
    if options.spars is not None and "spars" not in MODES[mode].options:
        parser.error(f"--spars {options.spars:g}: not an option of {mode}")
    if options.spars is None:
        options.spars = SPARS
    if mode == "sparseTopK" and not 0 < options.spars <= 1:
        parser.error("--spars: sparseTopK sends a fraction above 0 and up to 1")
    for name in ("momentum_correction", "clip_norm", "warm_up_epochs"):
        value = getattr(options, name)
        if value and name not in MODES[mode].options:
            option = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value:g}")
            parser.error(f"{option}: not an option of {mode}")
    return options
