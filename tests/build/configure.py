"""Configures the project in a folder of its own, as the tests of the build do."""

import subprocess


def configure(source, build, compiler, *arguments, environment=None):
    """Runs cmake; returns its output."""
    command = ["cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}"]
    run = subprocess.run(
        [*command, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if run.returncode != 0:
        raise AssertionError(f"{' '.join(run.args)} failed:\n{run.stdout}")
    return run.stdout
