#!/usr/bin/env bash
# Runs the benchmarks: bench.sh BUILD_DIR [NAME [ARGUMENT...]], all of them unless one is named.
# A benchmark is benchmarks/NAME.cpp, built as BUILD_DIR/bin/NAME, or benchmarks/NAME.py.
# allreduce_bench runs on two pinned ranks, twice: beside MPI as it is installed, and beside MPI with
# the settings that were found to be its best. An argument FILE.jsonl is FILE.tuned.jsonl for the
# second.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift

# Ranks on one host.
allreduce() {
  local launch=(mpiexec -n 2 --bind-to core)
  echo "-- MPI: as installed"
  "${launch[@]}" "$build/bin/allreduce_bench" "$@"
  echo "-- MPI: ring of 1 MiB segments, no mmap for large blocks"
  "${launch[@]}" --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm 5 \
    --mca coll_tuned_allreduce_algorithm_segmentsize 1048576 \
    -x GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296 \
    "$build/bin/allreduce_bench" "${@/%.jsonl/.tuned.jsonl}"
}

# What a Python benchmark needs besides the standard library.
python_for() {
  case $1 in
    python_*) scripts/find_python.sh numpy ;;
    *) scripts/find_python.sh torch ;;
  esac
}

run() {
  local name=$1
  shift
  echo "== $name $*"
  if [ -e "benchmarks/$name.py" ]; then
    PYTHONPATH=$build/python "$(python_for "$name")" "benchmarks/$name.py" "$@"
  elif [ "$name" = allreduce_bench ]; then
    allreduce "$@"
  else
    "$build/bin/$name" "$@"
  fi
}

if [ $# -gt 0 ]; then
  run "$@"
else
  for source in benchmarks/*.cpp benchmarks/*.py; do
    name=$(basename "${source%.*}")
    [ "$name" != mnist_accuracy ] || continue  # half an hour: only by name
    arguments=()
    [ "$name" != allreduce_bench ] || arguments=(--peers "mpi,gloo" --seconds 0.5)
    run "$name" "${arguments[@]}"
  done
fi
