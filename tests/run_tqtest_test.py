#!/usr/bin/env python3
"""Tests of the test runner: that it accepts what holds, and notices what does not."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

RUNNER = pathlib.Path(__file__).with_name("run_tqtest.py")


def run(text, *options):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "case.tqtest"
        path.write_text(text, encoding="utf-8")
        result = subprocess.run([sys.executable, RUNNER, "--tq", "/bin/echo", *options, path],
                                capture_output=True, text=True, check=False)
        return result.returncode, result.stdout


class RunnerTest(unittest.TestCase):
    def expect(self, code, text, message=""):
        got, output = run(text)
        self.assertEqual(got, code, output)
        self.assertIn(message, output)

    def test_exact_output(self):
        self.expect(0, "# why\nrun tq a b\n----\na b\n")
        self.expect(1, "run tq a b\n----\na c\n", "+ a b")
        self.expect(1, "run tq a\n----\na\nb\n", "stdout differs")

    def test_patterns(self):
        self.expect(0, "run tq 12.5 MiB\n----\n{{[0-9.]+}} MiB\n")
        self.expect(1, "run tq x MiB\n----\n{{[0-9.]+}} MiB\n", "stdout differs")
        self.expect(0, "run printf 'a\\nb\\nc'\n----\n...\nc\n")
        self.expect(1, "run printf 'a\\nb'\n----\n...\nc\n", "stdout differs")

    def test_two_steps_and_a_file(self):
        self.expect(0, "file x.txt a\\nb\nrun cat x.txt\n----\na\nb\n\n"
                       "run cat $TMP/x.txt\n----\na\nb\n")

    def test_failure(self):
        self.expect(0, 'fail sh -c "echo no >&2; exit 2"\n----\nno\n')
        self.expect(0, 'fail sh -c "echo no >&2; exit 3"\nexit 3\n----\nno\n')
        self.expect(1, "fail true\n----\n", "exit code 0, expected 2")
        self.expect(1, 'fail sh -c "echo out; exit 2"\n', "printed on stdout")
        self.expect(1, "run false\n", "exit code 1, expected 0")

    def test_json(self):
        document = """run tq '{"a": {"b": [1, 2.5]}, "s": "k3v2"}'\n---- json\n"""
        self.expect(0, document + 'a.b[1] > 2\ns == "k3v2"\ns ~ "^k"\na.b[0] < a.b[1]\n')
        self.expect(1, document + "a.b[1] > 3\n", "found 2.5")
        self.expect(1, document + "a.c\n", "KeyError")
        self.expect(1, "run tq text\n---- json\na\n", "not one JSON document")

    def test_stdin_and_environment(self):
        self.expect(0, "run cat\nstdin one\\ntwo\n----\none\ntwo\n")
        self.expect(0, "run sh -c 'echo $SOME_NAME'\nenv SOME_NAME=x\n----\nx\n")

    def test_bad_files(self):
        self.expect(1, "hello\n", "before the first run")
        self.expect(1, "# nothing\n", "no run")
        self.expect(1, "run tq a\n---- stdlog\n", "unknown section")

    def test_skips_without_model(self):
        code, output = run("run tq $MODEL\n", "--model", "/nonexistent")
        self.assertEqual(code, 77, output)


if __name__ == "__main__":
    unittest.main()
