#!/usr/bin/env bash
# Runs the benchmarks: bench.sh BUILD_DIR [NAME [ARGUMENT...]]. Unless one is named, a short run of
# each that can run here, some minutes in all. A benchmark is benchmarks/NAME.cpp, built as BUILD_DIR/bin/NAME,
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
  "${launch[@]}" "$build/bin/allreduce_bench" "$@" || return
  echo "-- MPI: ring of 1 MiB segments, no mmap for large blocks"
  "${launch[@]}" --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm 5 \
    --mca coll_tuned_allreduce_algorithm_segmentsize 1048576 \
    -x GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296 \
    "$build/bin/allreduce_bench" "${@/%.jsonl/.tuned.jsonl}"
}

# The Python of a benchmark: one with PyTorch, if that is there.
python_for() {
  scripts/find_python.sh numpy torch 2>/dev/null && return
  case $1 in
    *torch* | embedding_bench) scripts/find_python.sh numpy torch ;;
    *) scripts/find_python.sh numpy ;;
  esac
}

run() {
  local name=$1
  shift
  echo "== $name $*"
  if [ -e "benchmarks/$name.py" ]; then
    local python
    python=$(python_for "$name") || return
    PYTHONPATH=$build/python "$python" "benchmarks/$name.py" "$@"
  elif [ "$name" = allreduce_bench ]; then
    allreduce "$@"
  elif [[ $name =~ ^(collectives|memory|modes|overlap)_bench$ ]]; then
    "${launch[@]}" "$build/bin/$name" "$@"
  else
    "$build/bin/$name" "$@"
  fi
}

# What makes a run short, one argument a word.
short_arguments() {
  case $1 in
    allreduce_bench) echo --peers mpi,gloo --seconds 0.3 ;;
    cluster_bench) echo --layouts 2x1 --ops all_reduce --sizes 8,64K --seconds 0.1 ;;
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
    ps_checkpoint_bench) echo "$build" 262144 3 ;;
    ps_link_bench) echo 4000 ;;
    ps_table_bench) echo --rows 1M --seconds 0.1 --grow 0 ;;
    ctr_staleness) echo --epochs 1 --examples 51200 ;;
    ctr_vs_paddle) echo --rounds 1 --steps 60 ;;
    distributed_bench) echo --repeat 3 ;;
    embedding_bench) echo --rows 100000 --steps 3 ;;
    torch_*) echo --rounds 1 ;;
    store_bench) echo 400 ;;
    python_call) echo --rounds 5000 --repeat 3 ;;
    ps_python_call) echo --rounds 500 --repeat 3 ;;
    ps_python_evictions) echo --rows 1048576 --steps 100 ;;
  esac
}

# What a benchmark lacks here; nothing: it can run.
lacks() {
  case $1 in
    cluster_bench)
      "$(python_for "$1")" -c '
import sys
sys.path.insert(0, "tests/cluster")
import cluster
sys.exit(not cluster.is_possible())' || echo "network namespaces, which need root and iproute2"
      ;;
    torch_*)
      { PYTHONPATH=$build/python "$(python_for "$1")" -c 'import tutti.torch'; } 2>/dev/null ||
        echo "PyTorch 2.1 or newer"
      ;;
    *torch* | embedding_bench) python_for "$1" >/dev/null 2>&1 || echo "PyTorch" ;;
  esac
}

if [ $# -gt 0 ]; then
  run "$@"
  exit
fi
failed=()
mapfile -t names < <(basename -a benchmarks/*.cpp benchmarks/*.py | sed 's/\..*//' | sort -u)
for name in "${names[@]}"; do
  case $name in
    mnist_accuracy) continue ;;  # half an hour: only by name
    call_bench | ps_call_bench) continue ;;  # python_call and ps_python_call run them
  esac
  missing=$(lacks "$name")
  if [ -n "$missing" ]; then
    echo "== $name is left out, for lack of $missing"
    continue
  fi
  read -ra arguments <<<"$(short_arguments "$name")"
  run "$name" "${arguments[@]}" || failed+=("$name")
done
[ ${#failed[@]} -eq 0 ] || {
  echo "bench.sh: failed: ${failed[*]}" >&2
  exit 1
}
