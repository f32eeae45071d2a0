#!/usr/bin/env bash
# Installs what is missing: install_deps.sh [library] [python] [example] [build] [torch] [bench] [lint] [remote]
# On Debian and Ubuntu with apt-get (through sudo unless root); elsewhere it says what to install.
# When nothing is missing it does nothing.
set -euo pipefail

missing=()

# need PACKAGE PROBE...: the Debian package, and a command that succeeds when it is there.
need() {
  local package=$1
  shift
  [[ " ${missing[*]} " == *" $package "* ]] || "$@" >/dev/null 2>&1 || missing+=("$package")
}
has() { command -v "$1"; }
has_for_root() { PATH=$PATH:/usr/sbin:/sbin command -v "$1"; }
python_headers() {
  "$(scripts/find_python.sh numpy || echo /usr/bin/python3)" -c '
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}
makes_environments() { "$(scripts/find_python.sh numpy pytest || echo /usr/bin/python3)" -c 'import ensurepip'; }
has_pybind11() {
  [ -e /usr/share/cmake/pybind11 ] || [ -e /usr/lib/cmake/pybind11 ] ||
    "$(scripts/find_python.sh numpy)" -c 'import pybind11'
}
has_header() { echo "#include <$1>" | g++ -E -x c++ -; }

library() {
  need g++ has g++
  need cmake has cmake
  need ninja-build has ninja
  need libopenmpi-dev has mpicxx
}

python() {  # the package
  library
  need python3 has python3
  need python3-dev python_headers
  need python3-numpy scripts/find_python.sh numpy
  need pybind11-dev has_pybind11
}

example() {
  library
  need openmpi-bin has mpiexec
  need pkg-config has pkg-config
  need libopenblas-dev pkg-config --exists openblas
  need zlib1g-dev has_header zlib.h
}

build() {  # everything, and its tests
  example
  python
  need python3-pytest scripts/find_python.sh numpy pytest
  need python3-mpi4py scripts/find_python.sh numpy pytest mpi4py
  need libgtest-dev has_header gtest/gtest.h
  need iproute2 has_for_root tc  # of a test
}

torch() {  # what scripts/test_torch.sh gets PyTorch with
  build
  need python3-venv makes_environments
}

bench() {
  need libgloo-dev has_header gloo/allreduce.h
  need python3-torch scripts/find_python.sh torch
}

# For a test of jobs over ssh, which has servers of its own. Not one of `build`: where systemd runs, to install it is to
# start one.
remote() {
  need openssh-client has ssh
  need openssh-server has_for_root sshd
}

lint() {
  need libgloo-dev has_header gloo/allreduce.h  # clang-tidy reads what includes it
  need clang-format-14 has clang-format-14
  need clang-tidy has clang-tidy
  need shellcheck has shellcheck
  need python3-pyflakes scripts/find_python.sh pyflakes
  need mypy scripts/find_python.sh numpy pytest mypy  # for a test of the annotations
}

cd "$(dirname "$0")/.."
for group in "${@:-build}"; do
  case $group in
    library | python | example | build | torch | bench | lint | remote) "$group" ;;
    *)
      echo "install_deps.sh: no group named '$group' (library, python, example, build, torch, bench, lint, remote)" >&2
      exit 2
      ;;
  esac
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo)
fi
if ! command -v apt-get >/dev/null || { [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; }; then
  echo "Please install what these Debian packages hold, then try again: ${missing[*]}" >&2
  exit 1
fi

echo "Installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}" || {
  # Ubuntu, for one, has no python3-torch.
  echo "Please install another way what apt-get has not (PyTorch: pip install torch), then try again" >&2
  exit 1
}
