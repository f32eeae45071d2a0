#!/usr/bin/env bash
# Packs all that `gpu-check` needs on a machine that has a GPU, a driver, NCCL, cuBLAS and a Python:
# gpu_bundle.sh BUILD_DIR OUT.tgz. The programs of BUILD_DIR, the libraries that they are linked to (but
# for those of C and C++: the machine's must not be older than this one's), Open MPI as Debian and
# Ubuntu install it, MNIST from TUTTI_MNIST_DIR, if that is set, and the Python package for GPU_PYTHON,
# an interpreter of the version that the machine has, with its headers: a Python 3.12 unless told,
# and where there is none the bundle is without the package, and says so.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
out=$2

programs=(unit_tests gpu_tests gpu_ranks_test mnist_dist killed_rank_bench gpu_kernels_bench
  gpu_allreduce_bench)
packages=()
arch=x86_64-linux-gnu

for package in openmpi-bin openmpi-common libopenmpi3 libpmix2; do
  for name in "$package" "${package}t64"; do  # Ubuntu 24.04 has libopenmpi3t64
    if dpkg -s "$name" >/dev/null 2>&1; then
      packages+=("$name")
      continue 2
    fi
  done
  echo "gpu_bundle.sh: $package is not installed, and Open MPI is taken from Debian's packages" >&2
  exit 1
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/tutti-gpu
mkdir -p "$root/bin" "$root/lib" "$root/ompi" "$root/check" "$root/python"

for program in "${programs[@]}"; do
  cp "$build/bin/$program" "$root/bin/"
done
strip "$root"/bin/*

# Open MPI in the places where it looks for itself under OPAL_PREFIX, without the networks that
# nobody needs on one machine.
dpkg -L "${packages[@]}" | grep -E "^/(usr/bin/orterun|usr/share/(openmpi|pmix)|usr/lib/$arch/(openmpi|pmix2)|etc/openmpi)" |
  while read -r file; do
    if [ -f "$file" ]; then echo "$file"; fi
  done | grep -vE '/include/|_(ucx|ofi|openib|psm2?|netlink|cm)\.so|_mtl_|\.a$' |
  tar -C / -cf - --files-from <(sed 's,^/,,') 2>/dev/null | tar -C "$root/ompi" -xf -

# The Python package, as pip builds it, and its tests on arrays of GPUs.
has_headers() {
  "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' 2>/dev/null
}
python=
for each in "${GPU_PYTHON:-python3.12}" "$HOME"/.pyenv/versions/3.12.*/bin/python3; do
  if has_headers "$each"; then
    python=$each
    break
  elif [ -n "${GPU_PYTHON-}" ]; then
    echo "gpu_bundle.sh: GPU_PYTHON is $each, which is no Python with headers" >&2
    exit 1
  fi
done
if [ -n "$python" ]; then
  CUDAARCHS=${CUDAARCHS:-80-real;90-real;100} "$python" -m pip wheel -q --no-deps -w "$work" .
  mkdir -p "$root/python/tests"
  "$python" -m zipfile -e "$work"/tutti_distopt-*.whl "$root/python/site"
  strip "$root"/python/site/tutti/_core.*.so
  cp tests/python/{conftest,launching,test_gpu_cupy,test_gpu_torch,test_gpu_torch_backend}.py "$root/python/tests/"
else
  echo "gpu_bundle.sh: without the Python package: no Python 3.12 with headers (GPU_PYTHON names one)" >&2
fi

# Whatever they are linked to, in one folder.
find "$root/bin" "$root/ompi" "$root/python" -type f \( -perm -u+x -o -name '*.so*' \) -print0 |
  xargs -0 -n 1 ldd 2>/dev/null |
  awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libutil|libstdc\+\+|libgcc_s|libz)\.so' |
  while read -r library; do
    [ -e "$root/lib/$(basename "$library")" ] || cp -L "$library" "$root/lib/"
  done

if [ -n "${TUTTI_MNIST_DIR-}" ]; then
  mkdir -p "$root/data"
  cp "$TUTTI_MNIST_DIR"/*-ubyte* "$root/data/"
fi
cp benchmarks/cuda/topk_vs_torch.py "$root/bin/"
cp scripts/gpu_check/*.py "$root/check/"
ln -s check/main.py "$root/gpu-check"

tar -C "$work" -czf "$out" tutti-gpu
size=$(stat -c %s "$out")
echo "$out: $((size / 1048576)) MiB"
if [ "$size" -ge $((60 * 1048576)) ]; then
  echo "gpu_bundle.sh: it must stay below 60 MiB" >&2
  exit 1
fi
