#!/usr/bin/env bash
# Everything that needs a GPU, in one go and without a network: build for this machine's GPU, the
# GPU tests, the sanitizers, the benchmarks. Stopped after 8 minutes, which racecheck alone can take:
# one step at a time then.
#
#   scripts/gpu_check.sh [build] [tests] [sanitize] [benchmarks]        all of them by default
#
# Needs nvcc and a python3 with PyTorch, pytest, scikit-build-core, Cython, CMake and ninja.
#   DLKERN_WHEELS  folder of wheels for what else is missing (cython-cmake, scipy-openblas32,
#                  apache-tvm-ffi, ...; jaxlib with jax and its CUDA plugin for dlkern.jax): unpacked
#                  beside the build, not into python3
#   OUT            logs and results, by default build/gpu_check: <step>.log, summary.txt and
#                  results/<gpu>/*.json, these also as results.tar.gz
#   BENCH          options of every benchmark, by default --quick
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=${OUT:-build/gpu_check}
work=$root/build/gpu
mkdir -p "$out" "$work"
out=$(cd "$out" && pwd)

# New wheels replace old ones; nothing is written into the machine's own Python.
export PATH="$PATH:/usr/local/cuda/bin"
export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
export DLKERN_GPU=cuda DLKERN_CUDA_ARCHS="${DLKERN_CUDA_ARCHS:-native}"
export CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"
export PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1
deadline=460 # seconds from the start; what is not done by then is stopped

steps=("$@")
[ $# -gt 0 ] || steps=(build tests sanitize benchmarks)
failed=0
: >"$out/summary.txt"

note() { # note STEP RESULT SECONDS
  printf '%-24s %-44s %4d s\n' "$1" "$2" "$3" >>"$out/summary.txt"
}

run() { # run NAME LOG COMMAND...: at most as long as there is time; the summary tells how it went
  local name=$1 log=$2 start=$SECONDS left=$((deadline - SECONDS)) result
  shift 2
  if [ $left -le 0 ]; then
    note "$name" "not run: out of time" 0
    failed=1
    return 1
  fi
  timeout -k 5 "$left" "$@" >"$log" 2>&1
  local rc=$?
  # The last line that counts something: pytest's and compute-sanitizer's summaries.
  result=$(grep -E '([0-9]+ (passed|failed|error)|ERROR SUMMARY|RACECHECK SUMMARY)' "$log" | tail -1 |
    sed -E 's/=+ ?//g; s/ in [0-9.]+s.*//' | cut -c1-36)
  if [ $rc -eq 0 ]; then
    note "$name" "ok    $result" $((SECONDS - start))
  else
    note "$name" "FAIL  ${result:-exit $rc}" $((SECONDS - start))
    tail -25 "$log"
    failed=1
  fi
  return $rc
}

build() {
  rm -rf "$work/site"
  if [ -n "${DLKERN_WHEELS:-}" ]; then
    run wheels "$out/build.log" python3 -m pip install -q --no-index --no-deps --no-compile \
      --target "$work/site" "$DLKERN_WHEELS"/*.whl || return
  fi
  run build "$out/build.log" python3 -m pip install -v --no-index --no-deps --no-build-isolation \
    --no-compile --upgrade --target "$work/site" .
}

tests() {
  local parallel=()
  python3 -c 'import xdist' 2>/dev/null && parallel=(-n 8)
  run tests "$out/tests.log" python3 -m pytest -q -m gpu -p no:cacheprovider "${parallel[@]}" \
    --durations 15 --results "$out/results"
}

sanitize() { # the four tools at once: each keeps one core busy and the GPU mostly idle
  local tool pids=() pid
  # Every allocation of PyTorch's own, so that a read past its end is seen.
  export PYTORCH_NO_CUDA_MEMORY_CACHING=1
  for tool in memcheck racecheck initcheck synccheck; do
    local options=()
    # initcheck must see every kernel that writes; the others look at ours only. It does not know of
    # writes by bulk tensor copies, and takes what Hopper's kernels write for uninitialised.
    local names=""
    if [ $tool = initcheck ]; then names="not sm90"; else options=(--kernel-regex kns=dlkern); fi
    # cuda-bindings asks the driver for functions that it may not have: no error of a kernel.
    [ $tool != memcheck ] || options+=(--report-api-errors no)
    run "sanitize $tool" "$out/sanitize_$tool.log" compute-sanitizer --tool $tool \
      --error-exitcode 9 "${options[@]}" \
      python3 -m pytest -q -m "gpu and sanitize" -k "$names" -p no:cacheprovider &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
  done
  unset PYTORCH_NO_CUDA_MEMORY_CACHING
}

benchmarks() {
  local bench name
  : >"$out/benchmarks.log"
  for bench in benchmarks/bench_*.py; do
    name=$(basename "$bench" .py)
    # shellcheck disable=SC2086
    run "$name" "$work/$name.log" python3 -m "benchmarks.$name" ${BENCH:---quick} --out "$out/results"
    cat "$work/$name.log" >>"$out/benchmarks.log"
  done
}

for step in "${steps[@]}"; do
  "$step" || [ "$step" != build ] || break
done

[ ! -d "$out/results" ] || tar -C "$out" -czf "$out/results.tar.gz" results
echo
cat "$out/summary.txt"
exit $failed
