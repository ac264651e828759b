#!/usr/bin/env python3
"""Registers, spills and shared memory of every CUDA kernel; fails when one is over its limit.

usage: cmake/kernel_report.py [--arch 80] [--nvcc nvcc]

Compiles the *_cuda.cu files for one architecture, which needs nvcc and no card. A limit is what the
occupancy that the kernel was measured with allows: bytes spilled to memory, by the start of the
kernel's name and its template arguments. Exit 77 (a skipped test) where there is no nvcc.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = ["-std=c++20", "-O3", f"-I{ROOT}", "--expt-relaxed-constexpr", "-fmad=false",
         "-diag-suppress=2810", "-Xptxas=-v"]
# Kernels of 16 rows keep 64 output registers a thread more than fit, as does that of 8 rows which
# reads every format; the others must be lean.
SPILL_LIMITS = [("DecodeKernel 256 4", 4096), ("DecodeKernel 128 4", 512),
                ("DecodeKernel 256 2 2 2", 2048), ("DecodeKernel 256 2 2 1", 384), ("", 256)]


def kernels(nvcc, source, arch):
    """[(name, registers, spilled bytes, shared bytes)] of the kernels of one file."""
    with tempfile.NamedTemporaryFile(suffix=".o") as out:
        done = subprocess.run(
            [nvcc, *FLAGS, f"-gencode=arch=compute_{arch},code=sm_{arch}", "-c", str(source), "-o",
             out.name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{source}: nvcc failed\n{done.stderr}")
    found, name, spilled = [], None, 0
    for line in done.stderr.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            words = re.search(r"\d+([A-Za-z]+Kernel)(.*)", match[1])
            name = words[1] if words else match[1]
            if words:  # its template arguments: integers, bools, enumerators
                arguments = re.findall(r"L(?:i|b|NS_\d+[A-Za-z]+E)(\d+)E", words[2])
                name = " ".join([name, *arguments])
        elif match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = max(int(match[1]), int(match[2]))
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            found.append((name, int(match[1]), spilled, int(shared[1]) if shared else 0))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default="80")
    parser.add_argument("--nvcc", default="nvcc")
    options = parser.parse_args()
    if shutil.which(options.nvcc) is None:
        print(f"{options.nvcc} is not installed: CUDA kernels are not compiled here")
        return 77
    over = 0
    print(f"{'kernel':28} {'registers':>9} {'spilled':>8} {'shared':>7}")
    sources = sorted((ROOT / "turboquant").rglob("*_cuda.cu"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = pool.map(lambda source: kernels(options.nvcc, source, options.arch), sources)
    for report in reports:
        for name, registers, spilled, shared in report:
            limit = next(bytes_ for start, bytes_ in SPILL_LIMITS if name.startswith(start))
            mark = f"  over the limit of {limit}" if spilled > limit else ""
            over += bool(mark)
            print(f"{name:28} {registers:9} {spilled:8} {shared:7}{mark}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
