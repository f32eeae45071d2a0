"""Checkpoints in one folder: servers write theirs as a whole into a folder of it that has the
epoch's name, and then the older one goes."""

import os
import re
import shutil


def _epochs(folder):
    """How many epochs are behind the checkpoints there."""
    found = (re.fullmatch(r"epoch-(\d+)", name) for name in os.listdir(folder))
    return sorted(int(match[1]) for match in found if match)


def path_of(folder, epochs_done):
    return os.path.join(folder, f"epoch-{epochs_done}")


def last(folder):
    """The epochs done of the newest one. Throws FileNotFoundError if there is none."""
    epochs = _epochs(folder)
    if not epochs:
        raise FileNotFoundError(f"{folder}: holds no checkpoint")
    return epochs[-1]


def save(folder, epochs_done, fleet):
    os.makedirs(folder, exist_ok=True)
    fleet.save(path_of(folder, epochs_done))
    for older in _epochs(folder):
        if older != epochs_done:
            shutil.rmtree(path_of(folder, older))
