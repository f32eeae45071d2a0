#!/usr/bin/env bash
# Checks tutti on a machine with a GPU, from the folder that `make gpu-bundle` packed:
#
#   ./gpu-check [LOGS]        LOGS: a folder for what the parts print (`logs`, beside this file)
#
# Needs a driver, NCCL and cuBLAS; the last two are looked for in CUDA's folders and in Python's
# packages, or named by TUTTI_NCCL_LIB and TUTTI_CUBLAS_LIB. Where a Python has a PyTorch that finds
# the GPU, torch.topk is measured as well. Takes at most GPU_CHECK_SECONDS (480). Ends in a table.
# Status 0: all passed; 1: not; 77: there is no GPU.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
logs=${1:-$here/logs}
mkdir -p "$logs" && rm -f "$logs"/*.log || exit 1
most_log=262144  # bytes of a log: its end is kept
limit=${GPU_CHECK_SECONDS:-480}

# --- The machine ---------------------------------------------------------------------------------

arch=lib/x86_64-linux-gnu
export OPAL_PREFIX=$here/ompi/usr
export PMIX_INSTALL_PREFIX=$here/ompi/usr/$arch/pmix2
export PMIX_PKGLIBDIR=$PMIX_INSTALL_PREFIX/lib/pmix PMIX_PKGDATADIR=$PMIX_INSTALL_PREFIX/share/pmix
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_plm=isolated OMPI_MCA_pml=ob1 OMPI_MCA_btl=vader,self
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
export NCCL_DEBUG=${NCCL_DEBUG:-WARN} TUTTI_TIMEOUT=${TUTTI_TIMEOUT:-60}
# Or a kernel that is loaded late may wait for those of ranks on the same GPU, which wait for it.
export CUDA_MODULE_LOADING=EAGER
[ -d /dev/shm ] || mkdir -p /dev/shm

# first FILE...: the first that exists.
first() {
  local file
  for file in "$@"; do
    [ -e "$file" ] && echo "$file" && return
  done
  return 1
}

# find_library PACKAGE SONAME...: where a library of NVIDIA's lies on this machine.
find_library() {
  local package=$1 name folder paths
  shift
  local folders=(/usr/local/cuda/lib64 /usr/local/cuda-*/lib64 /usr/lib/x86_64-linux-gnu /usr/lib64)
  paths=$(python3 -c 'import sys; print("\n".join(p for p in sys.path if p))' 2>/dev/null)
  while read -r folder; do
    folders+=("$folder/nvidia/$package/lib" "$folder/nvidia/cu13/lib")
  done <<<"$paths"
  for folder in /usr/lib/python3*/*-packages /usr/local/lib/python3*/*-packages \
    /opt/*/lib/python3*/site-packages /root/*/lib/python3*/site-packages; do
    folders+=("$folder/nvidia/$package/lib" "$folder/nvidia/cu13/lib")
  done
  for name in "$@"; do
    first "${folders[@]/%//$name}" && return
  done
  return 1
}

nccl=${TUTTI_NCCL_LIB:-$(find_library nccl libnccl.so.2)}
cublas=${TUTTI_CUBLAS_LIB:-$(find_library cublas libcublas.so.13 libcublas.so.12)}
libraries=$here/lib
if [ -n "$nccl" ]; then export TUTTI_NCCL_LIB=$nccl; fi
if [ -n "$cublas" ]; then
  export TUTTI_CUBLAS_LIB=$cublas
  libraries=$libraries:$(dirname "$cublas")  # of libcublasLt
fi
# For our programs alone: this machine's need this machine's libraries.
ours=(env "LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")

devices=$(timeout -k 5 60 "${ours[@]}" TUTTI_LOG=info "$here/bin/gpu_kernels_bench" --devices 2>"$logs/devices.log")
status=$?
if [ "$status" -eq 77 ]; then
  # Why: the driver may be missing, or too old for this build.
  grep "no GPU is used" "$logs/devices.log"
  rm -rf "$logs/devices.log"
  rmdir "$logs" 2>/dev/null
  echo "no GPU"
  exit 77
fi
if [ "$status" -ne 0 ]; then
  cat "$logs/devices.log" >&2
  exit 1
fi
echo "$devices"
echo "NCCL: ${nccl:-not found}; cuBLAS: ${cublas:-not found}; logs: $logs"
gpus=$(wc -l <<<"$devices")

# --- The parts -----------------------------------------------------------------------------------

table=()
failed=0

# row NAME RESULT SECONDS NOTE
row() {
  table+=("$(printf '%-28s %-5s %4s s  %s' "$1" "$2" "$3" "$4")")
  printf '%s\n' "${table[-1]}"
}

# part NAME SECONDS COMMAND...: runs it into a log. It fails if it ends badly, lasts too long, or
# tested nothing.
part() {
  local name=$1 seconds=$2 log=$logs/$1.log start=$SECONDS left note="" result=pass
  shift 2
  left=$((limit - SECONDS))
  if [ "$left" -lt 5 ]; then
    row "$name" fail 0 "no time left"
    failed=1
    return
  fi
  [ "$seconds" -le "$left" ] || seconds=$left
  timeout -k 5 "$seconds" "$@" >"$log" 2>&1
  local status=$?
  if [ "$(stat -c %s "$log")" -gt "$most_log" ]; then
    tail -c "$most_log" "$log" >"$log.end" && mv "$log.end" "$log"
  fi
  if [ "$status" -ne 0 ]; then
    result=fail
    note="status $status"
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then note="longer than $seconds s"; fi
  elif grep -q "nothing was tested" "$log"; then
    result=fail
    note="a test skipped itself: $(grep -m 1 "nothing was tested" "$log")"
  fi
  [ "$result" = pass ] || failed=1
  row "$name" "$result" $((SECONDS - start)) "$note"
}

# our_part NAME SECONDS COMMAND...: the same with a program of ours.
our_part() {
  local name=$1 seconds=$2
  shift 2
  part "$name" "$seconds" "${ours[@]}" "$@"
}

ranks() { echo "$here/ompi/usr/bin/orterun" -n "$1"; }

our_part gpu_tests 120 "$here/bin/gpu_tests"
for n in 1 2 4; do
  # shellcheck disable=SC2046
  our_part "gpu_ranks.$n" 90 env CUDA_VISIBLE_DEVICES=0 $(ranks "$n") "$here/bin/gpu_ranks_test"
done
if [ "$gpus" -gt 1 ]; then
  # shellcheck disable=SC2046
  our_part "gpu_ranks.$gpus.one_each" 60 $(ranks "$gpus") "$here/bin/gpu_ranks_test"
fi
chosen=$(mktemp -d)  # what top-K selected from: large, and of no use afterwards
trap 'rm -rf "$chosen"' EXIT
our_part kernels 60 "$here/bin/gpu_kernels_bench" --out "$chosen"
# The first Python whose PyTorch finds the GPU, with this machine's libraries.
python=$(for each in python3 /usr/bin/python3 /usr/local/bin/python3 /opt/*/bin/python3 \
  /root/*/bin/python3; do
  [ $((limit - SECONDS)) -gt 240 ] || break
  timeout -k 5 60 "$each" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null &&
    echo "$each" && break
done)
if [ -n "$python" ]; then
  part torch_topk 90 "$python" "$here/bin/topk_vs_torch.py" "$chosen"
else
  row torch_topk skip 0 "no Python on this machine has a PyTorch that finds the GPU"
fi
rm -rf "$chosen"
# shellcheck disable=SC2046
our_part allreduce.1 30 $(ranks 1) "$here/bin/gpu_allreduce_bench" --seconds 0.5
if [ "$gpus" -gt 1 ]; then
  # shellcheck disable=SC2046
  our_part "allreduce.$gpus" 30 $(ranks "$gpus") "$here/bin/gpu_allreduce_bench" --seconds 0.5
fi

data=()
[ ! -d "$here/data" ] || data=(--data-dir "$here/data")
accuracies=()
least=0.97
# mnist OPTION [ARGUMENT...]: two epochs on two ranks, which must learn.
mnist() {
  local option=$1 accuracy
  shift
  our_part "mnist.$option" 60 "$here/bin/mnist_dist" --ranks 2 --device cuda --epochs 2 "${data[@]}" \
    --dist-option "$option" "$@"
  accuracy=$(sed -n 's/.*Evaluation accuracy = \([0-9.]*\).*/\1/p' "$logs/mnist.$option.log" | tail -n 1)
  accuracies+=("$option ${accuracy:-none}")
  if [[ ${accuracy:-0} < $least ]]; then  # as text: both are written alike
    row "mnist.$option.accuracy" fail 0 "${accuracy:-none} is below $least"
    failed=1
  fi
}
for option in fp32 fp16 bf16 partialUpdate; do mnist "$option"; done
mnist sparseTopK --spars 0.01
mnist sparseThreshold --spars 0.02

# CUDA has it in a folder of its own, and a link or a script beside its compiler.
sanitizer=$(first "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer \
  /usr/local/cuda*/compute-sanitizer/compute-sanitizer \
  /opt/nvidia/hpc_sdk/*/*/cuda/bin/compute-sanitizer /opt/*/bin/compute-sanitizer)
for tool in memcheck racecheck; do
  if [ -n "$sanitizer" ]; then
    our_part "sanitizer.$tool" 60 "$sanitizer" --tool "$tool" --error-exitcode 1 \
      "$here/bin/gpu_tests" --gtest_filter='GpuKernels.*:GpuSelect.*-*Millions*'
  else
    row "sanitizer.$tool" skip 0 "no compute-sanitizer on this machine"
  fi
done
our_part unit_tests 120 "$here/bin/unit_tests" --gtest_brief=1

# --- What came out -------------------------------------------------------------------------------

echo
echo "figures"
cat "$logs"/kernels.log "$logs"/torch_topk.log "$logs"/allreduce.*.log 2>/dev/null | grep '^{'
echo "accuracy after 2 epochs: $(printf '%s; ' "${accuracies[@]}")"
echo
printf '%s\n' "${table[@]}"
if [ "$failed" -ne 0 ]; then
  echo "NOT ALL PASSED; logs: $logs"
  exit 1
fi
echo "all passed in $SECONDS s; logs: $logs"
