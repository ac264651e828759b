#!/usr/bin/env bash
# Makes tests/golden/logits_smollm2.json anew, or another file: see llama_logits.cc.
# usage: bench/peers/make_logits_golden.sh [OUT.json]
set -euo pipefail
cd "$(dirname "$0")/../.."
log=build/peers.log
. cmake/setup.sh
. bench/peers/llama_cpp_version.sh
out=${1:-tests/golden/logits_smollm2.json}

bench/peers/build_llama_cpp.sh
open_log
fetch_model
.cache/llama.cpp/build/bin/llama_logits "$model" bench/peers/prompts.json "$out.part" \
  "$llama_cpp_version" "$model_sha256"
mv -f "$out.part" "$out"
say "wrote $out"
