// llama.cpp's own benchmark program as a peer: finding it, running it within a time, reading it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "turboquant/base/status.h"

namespace tq::cli {

struct PeerSettings {
  std::string program, model, cache_type;
  int threads = 0, tokens = 0, runs = 1;  // tokens to generate; 0: to read prompt_tokens
  int64_t depth = 0, prompt_tokens = 0;
  double most_seconds = 0;
};

struct PeerSpeed {
  double tokens_per_second = 0;
  std::vector<double> runs;  // tokens per second of each
  std::string build;         // "0c1e57098 (7000)"
  std::vector<std::string> command;
};

// --peer and --llama-bench.
void AddPeerFlags(CLI::App* command, std::string* peer, std::string* llama_bench);

// `named`, or the one on PATH, or that of bench/peers/build_llama_cpp.sh. kNotFound says how to get
// it.
Result<std::string> FindLlamaBench(const std::string& named);

std::vector<std::string> LlamaBenchCommand(const PeerSettings& settings);

// kUnavailable "took more than ..." when time ran out: the program was ended.
Result<PeerSpeed> RunLlamaBench(const PeerSettings& settings);

// Its -o json: the result that generates tokens, or the one that reads a prompt. kDataLoss says
// what is not as expected.
Result<PeerSpeed> ParseLlamaBench(std::string_view json, bool prompt = false);

// A program and its words, without a shell, ended after a time.
struct ProgramOutput {
  int exit_code = 0;  // 128 + signal for one that was killed
  bool timed_out = false;
  std::string out, err;
};
Result<ProgramOutput> RunProgram(const std::vector<std::string>& words, double most_seconds);

}  // namespace tq::cli
