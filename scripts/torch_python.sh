#!/usr/bin/env bash
# Prints a Python that has PyTorch: the user's own, or the system's, which Debian's package serves.
set -euo pipefail

for python in python3 /usr/bin/python3; do
  if "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null
  then
    echo "$python"
    exit 0
  fi
done
echo "torch_python.sh: neither python3 nor /usr/bin/python3 has PyTorch" >&2
exit 1
