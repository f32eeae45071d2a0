#!/usr/bin/env bash
# Runs the benchmarks: bench.sh BUILD_DIR [NAME [ARGUMENT...]]. Unless one is named, a short run of
# each, about two minutes in all. A benchmark is benchmarks/NAME.cpp, built as BUILD_DIR/bin/NAME,
# or benchmarks/NAME.py.
# Those of collectives run on two pinned ranks, allreduce_bench twice: beside MPI as it is installed,
# and beside MPI with the settings that were found to be its best. An argument FILE.jsonl is
# FILE.tuned.jsonl for the second.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift

# Ranks on one host. mpiexec may hang after a rank has aborted.
launch=(timeout -k 10 3600 mpiexec -n 2 --bind-to core)
allreduce() {
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
    python_* | ps_python_* | launch_* | ctr_*) scripts/find_python.sh numpy ;;
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
  elif [[ $name =~ ^(collectives|modes|overlap)_bench$ ]]; then
    "${launch[@]}" "$build/bin/$name" "$@"
  else
    "$build/bin/$name" "$@"
  fi
}

# What makes a run short, one argument a word.
short_arguments() {
  case $1 in
    allreduce_bench) echo --peers mpi,gloo --seconds 0.3 ;;
    collectives_bench) echo --sizes 512,64K,1M --seconds 0.2 ;;
    modes_bench) echo --elements 431080,4194304 --rounds 7 ;;
    overlap_bench) echo --rounds 3 ;;
    sparse_bench) echo --n 2097152 --runs 3 ;;
    topk_bench) echo --n 4194304 --runs 5 ;;
    topk_vs_torch) echo --n 4194304 --rounds 1 ;;
    launch_bench) echo --repeat 3 --megabytes 300 ;;
    loader_vs_torch) echo --samples 20000 --rounds 3 ;;
    mnist_vs_torch) echo --rounds 1 --images 6400 ;;
    ps_bench) echo --rows 1M --rounds 2 --seconds 0.1 ;;
    ctr_vs_paddle) echo --rounds 1 --steps 60 ;;
    store_bench) echo 400 ;;
    python_call) echo --rounds 5000 --repeat 3 ;;
    ps_python_call) echo --rounds 500 --repeat 3 ;;
    ps_python_evictions) echo --rows 1048576 --steps 100 ;;
  esac
}

if [ $# -gt 0 ]; then
  run "$@"
else
  for source in benchmarks/*.cpp benchmarks/*.py; do
    name=$(basename "${source%.*}")
    case $name in
      mnist_accuracy) continue ;;  # half an hour: only by name
      call_bench | ps_call_bench) continue ;;  # python_call and ps_python_call run them
    esac
    read -ra arguments <<<"$(short_arguments "$name")"
    run "$name" "${arguments[@]}"
  done
fi
