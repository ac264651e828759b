#!/usr/bin/env bash
# Builds llama.cpp, makes its logits on this machine and runs the golden test against those.
# usage: bench/peers/compare_live.sh [JOBS]
set -euo pipefail
cd "$(dirname "$0")/../.."
bench/peers/build_llama_cpp.sh "${1:-$(nproc)}"
mkdir -p build/peers
bench/peers/make_logits_golden.sh build/peers/logits_smollm2.json
TQ_GOLDEN_LOGITS=$PWD/build/peers/logits_smollm2.json build/tests/golden_test
