#!/usr/bin/env bash
# Runs the benchmarks: bench.sh BUILD_DIR [NAME [ARGUMENT...]], all of them unless one is named.
# A benchmark is benchmarks/NAME.cpp, built as BUILD_DIR/bin/NAME, or benchmarks/NAME.py.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift

run() {
  local name=$1
  shift
  echo "== $name $*"
  if [ -e "benchmarks/$name.py" ]; then
    "$(scripts/torch_python.sh)" "benchmarks/$name.py" "$@"
  else
    "$build/bin/$name" "$@"
  fi
}

if [ $# -gt 0 ]; then
  run "$@"
else
  for source in benchmarks/*.cpp benchmarks/*.py; do
    run "$(basename "${source%.*}")"
  done
fi
