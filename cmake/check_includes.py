#!/usr/bin/env python3
"""Fails when a file includes a folder that the architecture does not let it include.

usage: check_includes.py SOURCE_ROOT

Looks at every C++ and CUDA file of the folders below. Prints one line per forbidden include:
file:line, the edge, and what that folder may include. Exit 1 if there was one.
"""
import pathlib
import re
import sys

BASE = "turboquant/base"
CODEC = "turboquant/codec"
LIBRARY = [BASE, CODEC, "turboquant/cache", "turboquant/attention", "turboquant/linear",
           "turboquant/calibrate", "turboquant/plan"]
RUNTIME = ["runtime/formats", "runtime/tokenizer", "runtime/model", "runtime/engine",
           "runtime/evaluate", "runtime/quantize", "runtime/server",
           "runtime/calibrate"]

# Folder -> the other folders of this repository that it may include.
ALLOWED = {
    BASE: [],
    CODEC: [BASE],
    "turboquant/cache": [BASE, CODEC],
    "turboquant/attention": [BASE, CODEC, "turboquant/cache"],
    "turboquant/linear": [BASE],
    "turboquant/calibrate": [BASE, CODEC, "turboquant/cache"],
    "turboquant/plan": [BASE, CODEC],
    "runtime/formats": LIBRARY,
    "runtime/tokenizer": LIBRARY + ["runtime/formats"],
    "runtime/model": LIBRARY + ["runtime/formats"],
    "runtime/engine": LIBRARY + ["runtime/formats", "runtime/tokenizer", "runtime/model"],
    "runtime/evaluate": LIBRARY + RUNTIME[:4],
    "runtime/quantize": LIBRARY + RUNTIME[:5],
    "runtime/server": LIBRARY + RUNTIME[:5],
    "runtime/calibrate": LIBRARY + RUNTIME[:5],
    "cli": LIBRARY + RUNTIME,
    "python": LIBRARY + RUNTIME,
    "adapters/llamacpp": LIBRARY,
    "examples": LIBRARY + RUNTIME,
}

# Libraries that only some folders may include: pattern of the include -> folders.
EXTERNAL = [
    (re.compile(r"(fmt|spdlog)/"), RUNTIME + ["cli"], "cli and runtime"),
    (re.compile(r"CLI/"), ["cli"], "cli"),
    (re.compile(r"pcre2"), ["runtime/tokenizer"], "runtime/tokenizer"),
    (re.compile(r"curl/"), ["runtime/evaluate"], "runtime/evaluate"),
]

SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]')
INCLUDE_OF_MACRO = re.compile(r'^\s*#\s*define\s+HWY_TARGET_INCLUDE\s+"([^"]+)"')


def folder_of(path):
    """The longest folder of ALLOWED (or tests, bench) that holds `path`, or None."""
    parts = path.split("/")
    for length in (2, 1):
        name = "/".join(parts[:length])
        if len(parts) > length and (name in ALLOWED or name in ("tests", "bench")):
            return name
    return None


def check_file(root, path, report):
    owner = folder_of(path)
    try:
        lines = (root / path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return  # Somebody removed it while the check ran.
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line) or INCLUDE_OF_MACRO.match(line)
        if not match:
            continue
        target = match.group(1)
        where = f"{path}:{number}: "
        if path.endswith(".h") and target in ("cuda_runtime.h", "cuda_runtime_api.h", "cuda.h"):
            report(where + f"{target} in a header; only .cu and .cc files may include CUDA")
        for pattern, folders, words in EXTERNAL:
            if pattern.match(target) and owner not in folders:
                report(where + f"{owner} includes {target}; only {words} may")
        if target.startswith(("../", "./")):
            report(where + f'"{target}" is relative; write the path from the repository root')
            continue
        found = folder_of(target)
        if found is None or found == owner:
            continue
        if found not in ALLOWED[owner]:
            may = ", ".join(ALLOWED[owner]) or "no other folder"
            report(where + f"{owner} -> {found} ({target}); {owner} may include: {may}")


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    root = pathlib.Path(sys.argv[1])
    if not root.is_dir():
        print(f"{root}: not a folder", file=sys.stderr)
        return 2
    problems = []
    num_files = 0
    for folder in ALLOWED:
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root).as_posix()
            if file.suffix in SUFFIXES and folder_of(path) == folder:
                num_files += 1
                check_file(root, path, problems.append)
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} forbidden includes in {num_files} files")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
