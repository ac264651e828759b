"""What the bench scripts share: the machine and versions that stand in every result file."""
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[1].resolve()
TQ = ROOT / "build" / "cli" / "tq"
MODEL = ROOT / ".cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = ROOT / ".cache" / "bible.txt"
RESULTS = ROOT / "bench" / "results"


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"model name\s*: (.*)", info)
    flags = set(re.search(r"flags\s*: (.*)", info).group(1).split())
    shown = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512vbmi", "avx_vnni") if f in flags]
    return {"processor": name.group(1).strip() if name else platform.machine(),
            "cores": os.cpu_count(), "isa": shown,
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
                                1),
            "kernel": platform.release(), "load_before": round(os.getloadavg()[0], 2),
            "compiler": output("g++", "--version").splitlines()[0],
            "commit": output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD").strip()}


def cuda_machine(commit, **versions):
    """Driver and versions of a result from a CUDA device; `commit`: of the program that ran there."""
    driver = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").strip()
    return {"driver": driver, **versions, "kernel": platform.release(), "commit": commit}


def run(main):
    """Exits as main says, or with what a command that failed said."""
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(error.cmd)}: {error.stderr.strip()}")


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values),
            "runs": len(values)}


def write(name, result):
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_to(RESULTS / name, result)


def write_to(path, result):
    path = pathlib.Path(path)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")


def wait_for_quiet(load=1.5, minutes=2):
    """Returns when little else runs; after `minutes` it says so and goes on."""
    end = time.monotonic() + 60 * minutes
    while os.getloadavg()[0] >= load:
        if time.monotonic() > end:
            print(f"the machine is not quiet: load {os.getloadavg()[0]:.2f}", file=sys.stderr)
            return
        time.sleep(10)
