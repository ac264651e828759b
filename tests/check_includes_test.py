#!/usr/bin/env python3
"""Tests of cmake/check_includes.py over small trees: a right one, and each way to be wrong."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).parents[1] / "cmake" / "check_includes.py"


def check(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        result = subprocess.run([sys.executable, CHECK, root], capture_output=True, text=True,
                                check=False)
        return result.returncode, result.stdout


class CheckIncludesTest(unittest.TestCase):
    def test_allowed_edges_pass(self):
        code, output = check({
            "turboquant/base/a.h": "#pragma once\n#include <vector>\n",
            "turboquant/codec/b.h": '#include "turboquant/base/a.h"\n',
            "turboquant/cache/c.cc": '#include "turboquant/codec/b.h"\n',
            "turboquant/cache/d.cc": '#include "turboquant/cache/d.h"\n',
            "runtime/engine/e.cc": '#include "runtime/model/m.h"\n',
            "runtime/engine/f.cc": '#include "turboquant/cache/d.h"\n',
            "cli/main.cc": '#include <CLI/CLI.hpp>\n#include "runtime/engine/e.h"\n'})
        self.assertEqual((code, output), (0, ""))

    def expect(self, files, *words):
        code, output = check(files)
        self.assertEqual(code, 1, output)
        for word in words:
            self.assertIn(word, output)

    def test_upward_edge(self):
        self.expect({"turboquant/codec/b.cc": '#pragma once\n#include "turboquant/cache/c.h"\n'},
                    "turboquant/codec/b.cc:2: turboquant/codec -> turboquant/cache",
                    "may include: turboquant/base")

    def test_library_must_not_know_the_runtime(self):
        self.expect({"turboquant/attention/a.h": '#include "runtime/model/m.h"\n'},
                    "turboquant/attention -> runtime/model")

    def test_inside_runtime(self):
        self.expect({"runtime/model/m.cc": '#include "runtime/tokenizer/t.h"\n'},
                    "runtime/model -> runtime/tokenizer")

    def test_nothing_includes_the_command_line_or_tests(self):
        self.expect({"runtime/evaluate/e.cc": '#include "cli/table.h"\n#include "tests/x/y.h"\n'},
                    "runtime/evaluate -> cli", "runtime/evaluate -> tests")

    def test_highway_target_include_counts(self):
        line = '#define HWY_TARGET_INCLUDE "turboquant/codec/b.cc"\n'
        self.expect({"turboquant/base/a.cc": line},
                    "turboquant/base -> turboquant/codec", "may include: no other folder")

    def test_relative_includes(self):
        self.expect({"turboquant/base/a.cc": '#include "../codec/b.h"\n'}, "is relative")

    def test_external_libraries_have_their_place(self):
        self.expect({"turboquant/base/a.cc": "#include <spdlog/spdlog.h>\n",
                     "runtime/model/m.cc": "#include <CLI/CLI.hpp>\n"},
                    "turboquant/base includes spdlog/spdlog.h",
                    "runtime/model includes CLI/CLI.hpp")

    def test_no_cuda_in_headers(self):
        self.expect({"turboquant/base/a.h": "#include <cuda_runtime.h>\n"},
                    "cuda_runtime.h in a header")
        self.assertEqual(check({"turboquant/base/a.cc": "#include <cuda_runtime.h>\n"})[0], 0)


if __name__ == "__main__":
    unittest.main()
