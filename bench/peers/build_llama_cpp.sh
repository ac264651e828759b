#!/usr/bin/env bash
# Builds llama.cpp from the source in PyPI's llama-cpp-python into .cache/llama.cpp, for the
# machine it runs on: the peer of our benchmarks and the oracle of the golden files.
# usage: bench/peers/build_llama_cpp.sh [JOBS]
set -euo pipefail
cd "$(dirname "$0")/../.."
log=build/peers.log
. cmake/setup.sh
. bench/peers/llama_cpp_version.sh
jobs=${1:-$(nproc)}
dir=.cache/llama.cpp

open_log
[ "$(cat $dir/version 2>/dev/null)" = "$llama_cpp_version" ] && exit
require_disk . 1500 "llama.cpp"
ensure_venv
say "Fetching the source of llama-cpp-python $llama_cpp_python (74 MiB)"
rm -rf $dir
mkdir -p $dir
logged .venv/bin/python -m pip --disable-pip-version-check --no-cache-dir --retries 2 download --no-deps \
  --no-binary llama-cpp-python --dest $dir "llama-cpp-python==$llama_cpp_python" ||
  fail_with_log "llama-cpp-python $llama_cpp_python could not be fetched from PyPI" \
    "Check the network (behind a proxy: set https_proxy), then run this again."
tar -xzf $dir/*.tar.gz -C $dir --strip-components=3 --wildcards '*/vendor/llama.cpp'
rm $dir/*.tar.gz
say "Building llama.cpp ($jobs jobs; about 20 minutes of one core)"
logged cmake -S $dir -B $dir/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
  -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
  -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_MTMD=OFF -DLLAMA_BUILD_UI=OFF ||
  fail_with_log "llama.cpp could not be configured" "Read the lines above."
logged cmake --build $dir/build -j "$jobs" --target llama llama-bench llama-perplexity \
  llama-completion || fail_with_log "llama.cpp could not be built" \
    "If a compiler was killed, memory ran out: $0 1"
logged g++ -std=c++20 -O2 -Wall -Wextra bench/peers/llama_logits.cc -I$dir/include \
  -I$dir/ggml/include -L$dir/build/bin -lllama -lggml -lggml-base \
  -Wl,-rpath,"$PWD/$dir/build/bin" -o $dir/build/bin/llama_logits ||
  fail_with_log "bench/peers/llama_logits.cc could not be built" "Read the lines above."
printf '%s\n' "$llama_cpp_version" >$dir/version
say "llama.cpp is in $dir/build/bin"
