#!/usr/bin/env python3
"""Makes the folder that `bench/attention_cuda.py --peers` measures: kernels of other projects.

usage: bench/peers/prepare_cuda_peers.py FOLDER [--work FOLDER] [--python 3.12] [--jobs N]

For a machine with a card but no network, so the folder is small (14 MB as .tgz; the wheels and the
source are 150): of FlashInfer the modules that decode attention needs, compiled here for compute
capability 9.0a, and the Python files that they load, without headers, CUTLASS and the kernels of
other chips; of FlashAttention-3 (fa3-fwd) its library with all kernels blanked but those of
head_dim 128; of vLLM the Triton kernels of --kv-cache-dtype turboquant_* and stand-ins for what
they import.
Needs PyPI, nvcc (CUDA_HOME or /usr/local/cuda), ninja, strip and a Python with PyTorch; --python is
the version on the machine with the card, which has PyTorch, Triton, a C compiler for it, and the
small packages that FlashInfer imports (jinja2, numpy, nvidia-ml-py, packaging, requests, tqdm).
About 9 minutes of one core.
"""
import argparse
import importlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import types

VERSIONS = {"flashinfer": "0.7.4", "apache-tvm-ffi": "0.1.15.post2", "fa3-fwd": "0.0.3",
            "vllm": "0.33.0"}
ARCHITECTURE = "9.0a"
# What importing flashinfer.decode needs beside PyTorch.
IMPORTS = ["nvidia-ml-py", "jinja2", "numpy", "packaging", "requests", "tqdm", "filelock"]
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (28, 27, 24, 17)] + ["manylinux2014_x86_64"]
VLLM_KERNELS = "vllm/v1/attention/ops"
VLLM_FORMAT = "vllm/model_executor/layers/quantization/turboquant"
VLLM_FILES = [f"{VLLM_KERNELS}/triton_turboquant_decode.py",
              f"{VLLM_KERNELS}/triton_turboquant_store.py",
              f"{VLLM_KERNELS}/triton_decode_attention.py",
              f"{VLLM_FORMAT}/config.py", f"{VLLM_FORMAT}/centroids.py"]
# The packages between have no __init__.py: those of vLLM import all of it.
VLLM_STAND_INS = {
    "vllm/triton_utils/__init__.py": "import triton\nimport triton.language as tl\n",
    "vllm/platforms/__init__.py": '''class _Cuda:
    def is_cuda(self):
        return True

    is_cuda_alike = is_cuda

    def is_rocm(self):
        return False

    is_cpu = is_xpu = is_rocm


current_platform = _Cuda()
'''}
# Names of FlashAttention-3's kernels for head_dim 128 (a tile of C<128>, C<n> and the first again,
# then 128 for V) and of what merges the splits.
FA3_WANTED = re.compile(rb"FlashAttnFwdCombine|prepare_varlen|"
                        rb"FlashAttnFwdSm90\w{0,160}?S[0-9A-Z]_EEELi128E")
FLASHINFER_STAND_IN = ("# Stands in for FlashInfer's own, which imports all of its modules.\n")


def pip(*arguments, check=True, **environment):
    done = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
                          env=os.environ | environment, capture_output=True, text=True,
                          check=False)
    if check and done.returncode:
        sys.exit(f"pip {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}")
    return done


def fetch(work, python):
    """Downloads and unpacks what is not there from a former run."""
    wheels, site, target = work / "wheels", work / "site", work / "target"
    if not (site / "flashinfer").is_dir():
        print("fetching FlashInfer", flush=True)
        pip("install", "--quiet", "--no-deps", "--only-binary=:all:", "--target", str(site),
            f"flashinfer-python=={VERSIONS['flashinfer']}",
            f"apache-tvm-ffi=={VERSIONS['apache-tvm-ffi']}", IMPORTS[0])
        rest = [n for n in IMPORTS[1:] if importlib.util.find_spec(n.replace("-", "_")) is None]
        if rest:
            pip("install", "--quiet", "--only-binary=:all:", "--target", str(site), *rest)
    for folder, package in (("tvm_ffi", "apache-tvm-ffi"), ("fa3_fwd", "fa3-fwd")):
        if not (target / folder).is_dir():
            print(f"fetching {package}", flush=True)
            pip("install", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version",
                python, "--implementation", "cp", *(f"--platform={p}" for p in PLATFORMS),
                "--target", str(target), f"{package}=={VERSIONS[package]}")
    found = list(wheels.glob(f"*/*/{VLLM_FILES[0]}"))
    if not found:
        print("fetching vLLM's source", flush=True)
        wheels.mkdir(parents=True, exist_ok=True)
        # pip wants to know what a source package needs, for which vLLM's asks for PyTorch: without
        # it pip fails here, after it has unpacked the source, and --no-clean leaves that.
        done = pip("download", "--no-clean", "--no-deps", "--no-build-isolation", "--no-binary",
                   "vllm", "--dest", str(wheels), f"vllm=={VERSIONS['vllm']}", check=False,
                   TMPDIR=str(wheels))
        found = list(wheels.glob(f"*/*/{VLLM_FILES[0]}"))
        if not found:
            sys.exit(f"vLLM's source was not unpacked:\n{done.stdout}\n{done.stderr}")
    return site, target, found[0].parents[len(pathlib.Path(VLLM_FILES[0]).parts) - 1]


def specs():
    """Modules that cuda_peers.py uses: of each cache FA2 with and without tensor cores, XQA."""
    import torch
    from flashinfer.jit.attention import modules
    from flashinfer.jit.xqa import gen_xqa_module
    half, index, dim = torch.float16, torch.int32, 128
    made = []
    for cache in (half, torch.float8_e4m3fn):
        shape = (half, cache, half, index, dim, dim, 0, False, False)
        made += [modules._gen_batch_prefill_primary_module("fa2", *shape, False),
                 modules.gen_batch_decode_module(*shape)]
        # Only asked for its name when the primary is loaded; its files are opened all the same.
        modules._gen_batch_prefill_independent_paged_module("fa2", *shape, False)
        made += [gen_xqa_module(half, cache, page, dim, group, False, half)
                 for page in (16, 64) for group in (4, 1)]
    return made


def copy(source, root, folder):
    to = folder / source.relative_to(root)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, to)


def prepare_flashinfer(folder, site, work, jobs):
    root = site / "flashinfer"
    opened = set()
    sys.addaudithook(lambda event, details: opened.add(str(details[0]))
                     if event == "open" else None)
    os.environ |= {"FLASHINFER_CUDA_ARCH_LIST": ARCHITECTURE, "MAX_JOBS": str(jobs),
                   "FLASHINFER_WORKSPACE_BASE": str(work),
                   "FLASHINFER_DISABLE_VERSION_CHECK": "1"}
    sys.path.insert(0, str(site))
    package = types.ModuleType("flashinfer")
    package.__path__ = [str(root)]
    sys.modules["flashinfer"] = package
    importlib.import_module("flashinfer.decode")
    made = specs()
    needed = {pathlib.Path(name) for name in opened} | {
        pathlib.Path(m.__file__) for m in list(sys.modules.values())
        if getattr(m, "__file__", None)}
    headers = root / "data" / "cutlass"  # one is read to ask which chips it knows
    for file in sorted(needed):
        if (file.is_relative_to(root) and not file.is_relative_to(headers) and file.is_file()
                and file.suffix != ".pyc"):
            copy(file, site, folder)
    (folder / "flashinfer" / "__init__.py").write_text(FLASHINFER_STAND_IN, encoding="utf-8")
    for number, spec in enumerate(made, 1):
        print(f"module {number} of {len(made)}: {spec.name}", flush=True)
        spec.build()
        # Where FlashInfer looks for modules that were compiled ahead of time.
        to = folder / "flashinfer" / "data" / "aot" / spec.name / f"{spec.name}.so"
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "--strip-unneeded", "-o", str(to), str(spec.jit_library_path)],
                       check=True)


def prepare_tvm_ffi(folder, target):
    for file in sorted((target / "tvm_ffi").rglob("*")):
        inner = file.relative_to(target / "tvm_ffi").parts[0]
        if file.is_file() and inner not in ("include", "3rdparty", "src", "share", "cython") and (
                file.suffix == ".py" or file.name.startswith("libtvm_ffi")
                or file.name.startswith("core.") and file.suffix == ".so"):
            copy(file, target, folder)


def section(data, wanted):
    """Offset and bytes of a section of an ELF file of 64 bits."""
    start, = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, start + i * size) for i in range(count)]
    for header in headers:
        name = headers[names][4] + header[0]
        if data[name:data.index(b"\0", name)] == wanted:
            return header[4], header[5]
    sys.exit(f"no section {wanted.decode()}")


def prepare_fa3(folder, target):
    """All kernels in one library of 105 MB: those of other head sizes are blanked.

    A blanked one is left as if it were code of another chip (the library has such too), which the
    driver passes over; of zeros an archive keeps nothing.
    """
    copy(target / "fa3_fwd" / "_C.abi3.so", target, folder)
    to = folder / "fa3_fwd" / "_C.abi3.so"
    subprocess.run(["strip", "--strip-unneeded", str(to)], check=True)
    data = bytearray(to.read_bytes())
    at, size = section(data, b".nv_fatbin")
    end, kept, blanked = at + size, 0, 0
    while at < end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != 0xBA55ED50:
            at += 8  # between two containers
            continue
        at += header
        entry, = struct.unpack_from("<I", data, at + 4)
        chip, = struct.unpack_from("<I", data, at + 28)
        code = bytes(data[at + entry:at + size])
        if chip == 90 and FA3_WANTED.search(code):
            kept += size
        else:
            struct.pack_into("<I", data, at + 28, 80)
            data[at + entry:at + size] = bytes(size - entry)
            blanked += size
        at += size
    to.write_bytes(data)
    print(f"FlashAttention-3: kernels of {kept / 1e6:.1f} MB kept, of {blanked / 1e6:.1f} blanked")


def prepare_vllm(folder, source):
    for name in VLLM_FILES:
        copy(source / name, source, folder)
    for name, text in VLLM_STAND_INS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--work", help="downloads and objects; default: FOLDER.work")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"{sys.executable} has no PyTorch, which FlashInfer's build asks for; "
                 "run this with a Python that has it")
    os.environ.setdefault("CUDA_HOME", "/usr/local/cuda")
    for tool in ("ninja", "strip", os.environ["CUDA_HOME"] + "/bin/nvcc"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is missing; this compiles FlashInfer's modules with it")
    folder = pathlib.Path(options.folder).resolve()
    work = pathlib.Path(options.work or f"{options.folder}.work").resolve()
    if folder.exists():
        shutil.rmtree(folder)
    site, target, source = fetch(work, options.python)
    prepare_vllm(folder, source)
    prepare_tvm_ffi(folder, target)
    prepare_fa3(folder, target)
    prepare_flashinfer(folder, site, work, options.jobs)
    (folder / "peers.json").write_text(json.dumps(
        {"versions": VERSIONS, "python": options.python, "architecture": ARCHITECTURE},
        indent=1) + "\n", encoding="utf-8")
    files = [f for f in folder.rglob("*") if f.is_file()]
    print(f"{options.folder}: {len(files)} files, {sum(f.stat().st_size for f in files) / 1e6:.1f}"
          " MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
