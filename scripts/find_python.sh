#!/usr/bin/env bash
# Prints a Python that has the named packages: the user's own, or the system's, which Debian's
# packages serve: find_python.sh PACKAGE...
set -euo pipefail

for python in python3 /usr/bin/python3; do
  if "$python" -c 'import importlib.util as u, sys
sys.exit(any(u.find_spec(name) is None for name in sys.argv[1:]))' "$@" 2>/dev/null; then
    "$python" -c 'import sys; print(sys.executable)'
    exit 0
  fi
done
echo "find_python.sh: neither python3 nor /usr/bin/python3 has $*" >&2
exit 1
