#!/usr/bin/env python3
"""Products of weights with few rows on a CUDA device, quantized beside BF16 through cuBLASLt.

usage: bench/products_cuda.py [--tq FILE] [--type LIST] [--rows LIST] [--out FILE] [--commit ID]

Runs `tq bench products`: the matrices of a layer of an 8B model, CUDA graphs over distinct buffers,
medians. ratio_to has the time of BF16 divided by that of a type. Writes
bench/results/products_cuda.json. Where cuBLASLt is PyTorch's only, its folder is added to
LD_LIBRARY_PATH for the run.
"""
import argparse
import importlib.util
import json
import os
import pathlib

from common import RESULTS, TQ, cuda_machine, output, run, write_to


def cublaslt_folders():
    """Folders of PyPI's nvidia packages that hold cuBLASLt."""
    found = importlib.util.find_spec("nvidia")
    roots = found.submodule_search_locations if found else []
    return sorted({str(library.parent) for root in roots
                   for library in pathlib.Path(root).glob("*/lib/libcublasLt.so.*")})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tq", default=str(TQ))
    parser.add_argument("--type", default="BF16,Q4_0,Q4_1,Q4_K,Q8_0")
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--out", default=str(RESULTS / "products_cuda.json"))
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    paths = [os.environ.get("LD_LIBRARY_PATH", ""), *cublaslt_folders()]
    os.environ["LD_LIBRARY_PATH"] = ":".join(p for p in paths if p)
    document = {"measured_on": cuda_machine(options.commit)}
    document |= json.loads(output(options.tq, "bench", "products", "--type", options.type, "--rows",
                                  options.rows, "--runs", "15", "--json", "--quiet"))
    for result in document["results"]:
        if "skipped" in result:
            print(f"{result['name']}: skipped: {result['skipped']}")
            continue
        settings = result["settings"]
        line = (f"{result['name']} {settings['matrix']}, {settings['rows']} rows: "
                f"{result['us']:.1f} us, {result['bytes_per_second'] / 1e12:.2f} TB/s")
        print(line + "".join(f", {ratio:.2f}x {name}"
                             for name, ratio in result["ratio_to"].items()), flush=True)
    write_to(options.out, document)
    return 0


if __name__ == "__main__":
    run(main)
