#!/usr/bin/env bash
# Runs the tests that need PyTorch: test_torch.sh [--install] BUILD_DIR [VERSION]. PyTorch, of that version or
# the newest, is installed with pip in BUILD_DIR/torch-VERSION, where it stays: some gigabytes, since the builds
# that pip gets come with CUDA's libraries. With --install that is all.
set -euo pipefail
cd "$(dirname "$0")/.."
install_only=
if [ "$1" = --install ]; then
  install_only=yes
  shift
fi
build=$1
version=${2-}
environment=$build/torch-${version:-newest}
# Of what is imported alone, and whatever the user has chosen.
export PYTHONDONTWRITEBYTECODE='' PYTHONPYCACHEPREFIX=$PWD/$environment/bytecode

if [ ! -e "$environment/installed" ]; then
  rm -rf "$environment"
  "$(scripts/find_python.sh numpy pytest)" -m venv --system-site-packages "$environment"
  # Upgraded, since the system may have an old one, which the environment sees.
  "$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile --upgrade "torch${version:+==$version}"
  touch "$environment/installed"
fi
"$environment/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
[ -z "$install_only" ] || exit 0

# What is compiled against PyTorch, which versions that are too old refuse.
export PYTHONPATH=$PWD/$build/python XDG_CACHE_HOME=$PWD/$environment/cache
if "$environment/bin/python" -c 'import torch._C._distributed_c10d as c; exit(not hasattr(c.Backend, "allocate_tensor"))'; then
  "$environment/bin/python" -m tutti.torch.build
fi

# Three files at a time, since ranks start, or wait, most of the time, and those first that take long. Of the files that
# are not about PyTorch alone, the tests that are named after it.
export TUTTI_TIMEOUT=30
export OMPI_MCA_btl_vader_single_copy_mechanism=none  # as the other tests have it
test=("$environment/bin/python" -m pytest -q -rs -p no:cacheprovider)
whole=(tests/python/test_{megengine,torch_*,*_torch*,dist_opt_passes,dist_opt_rows,summed_gradients}.py)
mapfile -t others < <(grep -l torch tests/python/test_*.py | grep -vxFf <(printf '%s\n' "${whole[@]}"))
printf '%s\n' "${whole[@]}" | timeout 900 xargs -P 3 -n 1 "${test[@]}"
timeout 300 "${test[@]}" -k torch "${others[@]}"
