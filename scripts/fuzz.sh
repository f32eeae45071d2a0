#!/usr/bin/env bash
# Runs the fuzzers: fuzz.sh BUILD_DIR [NAME] [--seconds S | --runs N] [--seed N]. Unless one is
# named, all of them, each for so long; a minute unless told. What fails is left in BUILD_DIR/fuzz.
set -euo pipefail
build=$(realpath "$1")
shift
only=""
case ${1-} in
  "" | --*) ;;
  *) only=$1 && shift ;;
esac
case " $*" in
  *" --seconds"* | *" --runs"*) ;;
  *) set -- --seconds 60 "$@" ;;
esac
tests=$(realpath "$(dirname "$0")/../tests/fuzz")
mkdir -p "$build/fuzz"
cd "$build/fuzz"

found=0
status=0
run() {
  local name=$1
  shift
  [ -z "$only" ] || [ "$only" = "$name" ] || return 0
  found=1
  "$@" || status=1
}

for source in "$tests"/*_fuzz.cpp; do
  name=$(basename "${source%_fuzz.cpp}")
  [ "$name" = planted ] || run "$name" "$build/bin/fuzz_$name" "$@"
done
python=$("$tests/../../scripts/find_python.sh" numpy)
export PYTHONPATH=$build/python PYTHONDONTWRITEBYTECODE=1
if compgen -G "$PYTHONPATH/tutti/_core*" >/dev/null; then
  for source in "$tests"/fuzz_*.py; do
    name=$(basename "${source%.py}")
    name=${name#fuzz_}
    run "python_$name" "$python" "$tests/python_fuzz.py" "$name" "$@"
  done
else
  echo "fuzz.sh: SKIPPED: those of the Python module, which was not built" >&2
  [[ $only != python_* ]] || exit 1
fi
[ "$found" = 1 ] || { echo "fuzz.sh: no fuzzer is called '$only'" >&2 && exit 2; }
exit "$status"
