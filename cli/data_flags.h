// The flags of every command that reads the user's own requests and texts.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/common.h"
#include "runtime/evaluate/corpus.h"

namespace tq::cli {

// The fetched text, for who has named nothing.
Result<std::string> DefaultText();

// kInvalidArgument: a part that `who` cannot do without, "calibration" or "held-out", is empty;
// says what became of the data.
Status CheckHasPart(const Corpus& corpus, std::string_view part, const std::string& who);

struct DataFlags {
  std::vector<std::string> data;    // files and folders; empty: the fetched text, which is no
                                    // substitute for one's own (the report says so)
  std::vector<std::string> redact;  // "REGEX" or "REGEX => REPLACEMENT"
  std::string redact_file;          // such lines, # comments
  uint64_t seed = 0;
  int64_t max_tokens = 1 << 20;
  double held_out_share = 0.25;
  double shared_prefix = 0.9;
  std::string part = "all";  // which part a command evaluates on: all, calibration, held-out

  // --data --redact --redact-file --seed --max-tokens --held-out-share --shared-prefix; set members
  // before for other defaults.
  void Add(CLI::App* app);
  // --part too: for commands that evaluate on what a calibration has not seen.
  void AddPart(CLI::App* app);

  // What can be refused before anything is loaded: unknown words, paths that are not there,
  // expressions that are none.
  Status Validate() const;
  // The corpus, with progress; kInvalidArgument: nothing of --part. `context_len`: the context that
  // is served. Its notes go to stderr, unless the caller prints CorpusText, which has them.
  enum class Notes { kPrint, kLeave };
  Result<Corpus> Read(int64_t context_len, const OutputFlags& output,
                      Notes notes = Notes::kPrint) const;
  bool redacts() const { return !redact.empty() || !redact_file.empty(); }
  // The expressions of --redact and --redact-file, for texts that come from elsewhere: answers.
  Result<Redactor> MakeRedactor() const;
  // The items of --part, from a corpus that Read gave.
  std::vector<CorpusItem> ItemsOf(Corpus corpus) const;
  // "--data a.jsonl --seed 3 ...": what makes the same corpus again. Reports are passed on, and
  // expressions may be secret themselves: there they are a file that has yet to be named.
  // kFlags: those of it, for GivenOptions.
  static constexpr std::string_view kFlags[] = {
      "--data",       "--redact",         "--redact-file",  "--seed",
      "--max-tokens", "--held-out-share", "--shared-prefix"};
  enum class ShownIn { kReport, kTerminal };
  std::string CommandLine(ShownIn where = ShownIn::kReport) const;
};

}  // namespace tq::cli
