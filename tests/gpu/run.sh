#!/usr/bin/env bash
# Everything that needs a CUDA device, in one call of a few minutes: the tests, and compute-sanitizer
# over the fast ones. Builds with the preset cuda unless --tests-in names a folder that has the test
# binaries; folders are taken from the repository's root. Exit 1 if anything failed or was skipped.
#
# usage: tests/gpu/run.sh [--tests-in FOLDER] [--out FOLDER]
set -u
cd "$(dirname "$0")/../.."
tests='' out=build-cuda/gpu
while [ $# -gt 0 ]; do
  case $1 in
    --tests-in) tests=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    *) sed -n '2,6p' "$0"; exit 2 ;;
  esac
done
if [ -z "$tests" ]; then
  cmake --preset cuda >/dev/null && cmake --build --preset cuda \
    --target base_test cache_test attention_test linear_test || exit 1
  tests=build-cuda/tests-here
  mkdir -p "$tests"
  ln -sf "$PWD"/build-cuda/turboquant/{base/base_test,cache/cache_test,attention/attention_test,linear/linear_test} \
    "$tests"
fi
mkdir -p "$out"
failed=0
step() {  # NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1 && ! grep -q SKIPPED "$out/$name.log"; then
    echo "ok      $name ($((SECONDS - start)) s)"
  else
    echo "FAILED  $name ($((SECONDS - start)) s): $out/$name.log"
    tail -n 25 "$out/$name.log"
    failed=1
  fi
}
device='Device.*:DeviceCache.*:DeviceAttention.*:DeviceProduct.*:DeviceFloatProduct.*:OnDevice.*:FloatsOnDevice.*:WideOnDevice.*:PrefillOnDevice.*-*WithoutADevice*'
for test in base cache attention linear; do
  step "$test" "$tests/${test}_test" --gtest_filter="$device"
done
# The sanitizers slow kernels down a hundredfold: one of each kind of work.
quick='OnDevice.EveryPairOfWidths:OnDevice.OneOfEverything:OnDevice.SkippingOfAFewShapes:WideOnDevice.OneOfEverything:PrefillOnDevice.ThePlainKernel'
# The Hopper kernel of prefill is memcheck's only: racecheck does not see that a lane arrives at a
# barrier for its warp, and takes the next use of a stage's scales for a race.
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    more='' prompt=''
    if [ $tool = memcheck ]; then
      more=':PrefillOnDevice.EveryLength' prompt=':OnDevice.PartsOfAPrompt*'
    fi
    step "$tool-attention" timeout 150 compute-sanitizer --tool $tool --error-exitcode 9 \
      "$tests/attention_test" --gtest_filter="$quick$more"
    step "$tool-cache" timeout 100 compute-sanitizer --tool $tool --error-exitcode 9 \
      "$tests/cache_test" --gtest_filter="OnDevice.OneTokenSealsABlock$prompt"
    step "$tool-linear" timeout 100 compute-sanitizer --tool $tool --error-exitcode 9 \
      "$tests/linear_test" --gtest_filter='OnDevice.ANonFinite*:OnDevice.ARowHas*'
  done
else
  echo 'skipped compute-sanitizer: not installed'
fi
exit $failed
