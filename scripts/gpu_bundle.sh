#!/usr/bin/env bash
# Packs all that `gpu-check` needs on a machine that has a GPU and nothing else: gpu_bundle.sh
# BUILD_DIR OUT.tgz. The programs of BUILD_DIR, the libraries that they are linked to (but for the C
# library: the machine's must not be older than this one's), Open MPI as Debian and Ubuntu install
# it, and MNIST from TUTTI_MNIST_DIR, if that is set. NCCL and cuBLAS are not in it.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
out=$2

programs=(unit_tests gpu_tests gpu_ranks_test mnist_dist gpu_kernels_bench gpu_allreduce_bench)
packages=(openmpi-bin openmpi-common libopenmpi3 libpmix2)
arch=x86_64-linux-gnu

for package in "${packages[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || {
    echo "gpu_bundle.sh: $package is not installed, and Open MPI is taken from Debian's packages" >&2
    exit 1
  }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/tutti-gpu
mkdir -p "$root/bin" "$root/lib" "$root/ompi"

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

# Whatever they are linked to, in one folder.
find "$root/bin" "$root/ompi" -type f \( -perm -u+x -o -name '*.so*' \) -print0 |
  xargs -0 -n 1 ldd 2>/dev/null |
  awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so' |
  while read -r library; do
    [ -e "$root/lib/$(basename "$library")" ] || cp -L "$library" "$root/lib/"
  done

if [ -n "${TUTTI_MNIST_DIR-}" ]; then
  mkdir -p "$root/data"
  cp "$TUTTI_MNIST_DIR"/*-ubyte* "$root/data/"
fi
cp benchmarks/cuda/topk_vs_torch.py "$root/bin/"
cp scripts/gpu_check.sh "$root/gpu-check"
chmod +x "$root/gpu-check"

tar -C "$work" -czf "$out" tutti-gpu
size=$(stat -c %s "$out")
echo "$out: $((size / 1048576)) MiB"
if [ "$size" -ge $((60 * 1048576)) ]; then
  echo "gpu_bundle.sh: it must stay below 60 MiB" >&2
  exit 1
fi
