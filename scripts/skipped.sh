#!/usr/bin/env bash
# Says what the last run of ctest has left out, with the reasons and how often: skipped.sh BUILD_DIR. It is the tests
# that say so themselves, in tests of ctest that have passed, too.
set -euo pipefail

log=$1/Testing/Temporary/LastTest.log
[ -f "$log" ] || exit 0
reasons=$(sed -nE 's/^SKIPPED( \[[0-9]+\] [^ ]+)?: //p; /nothing was tested/p' "$log" | sort | uniq -c | sort -rn)
[ -z "$reasons" ] || printf 'Left out by tests:\n%s\n' "$reasons"
