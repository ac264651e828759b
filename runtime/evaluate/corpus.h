// One's own traffic and texts as input: reads, redacts, drops duplicates, samples, splits into a
// calibration and a held-out part, and packs tokens into windows of the served context.
//
//   ReadCorpus ▶ Corpus (items of both parts, report) ▶ CorpusEncoder ▶ PackWindows
//
// Memory is bounded whatever the size of the input: a sample is kept while reading. The same files,
// options and seed give the same corpus. Which part a request or a document belongs to depends on
// all files as they are after redaction, the seed and held_out_share alone (corpus_divide.h), not
// on how much is kept.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/evaluate/redactor.h"
#include "runtime/tokenizer/chat_template.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"

namespace tq {

struct CorpusOptions {
  // JSON lines (OpenAI chat or completion bodies, or envelopes with request and response), texts,
  // folders of both; .gz and .zst are unpacked. docs/guides/data.md has the forms.
  std::vector<std::string> paths;
  std::vector<Redaction> redactions;  // in order, on every string before it is kept or shown
  uint64_t seed = 0;
  int64_t max_tokens = 1 << 20;  // of both parts together, about; what is kept in memory
  double held_out_share = 0.25;  // of the bytes; 0: everything is calibration
  // A request that shares this much of its text with a longer one, from the beginning and system
  // messages aside, is a duplicate of it.
  double shared_prefix = 0.9;
  int64_t context_len = 2048;  // texts are sampled in pieces of at least so many tokens
  ProgressSink progress;       // bytes of the files
};

struct RecordedAnswer {
  std::string content;
  std::string tool_calls;     // JSON array; empty: none
  std::string finish_reason;  // "stop", "length", "tool_calls"; empty: not logged
};

struct CorpusItem {
  enum class Kind { kChat, kCompletion, kText };
  Kind kind = Kind::kText;
  std::string name;                   // "log.jsonl, line 17", "docs/a.txt, byte 0"
  std::string body;                   // of a request: its JSON body, redacted; empty: a text
  std::vector<ChatMessage> messages;  // kChat
  std::string text;                   // kCompletion: the prompt; kText: the text
  std::optional<RecordedAnswer> answer;
  size_t bytes() const;
};

struct CorpusPart {
  int64_t requests = 0, with_answer = 0, texts = 0, bytes = 0;
};

// What was read, what of it is used, and why the rest is not.
struct CorpusReport {
  std::vector<std::string> sources;  // files, those of folders sorted
  int64_t lines = 0;                 // of logs, empty ones aside
  int64_t texts = 0;                 // files of text
  int64_t bytes = 0;                 // unpacked
  struct Skipped {
    std::string reason;  // never holds text of the input
    int64_t count = 0;
    std::string example;  // where the first one stands
  };
  std::vector<Skipped> skipped;
  int64_t duplicates = 0;     // of those that were kept: the same text
  int64_t shared_prefix = 0;  // dropped for a longer one that begins so
  int64_t not_sampled = 0;    // requests and pieces of text that did not fit max_tokens
  int64_t redactions = 0;     // matches that were replaced
  CorpusPart calibration, held_out;
  uint64_t hash = 0;               // of everything kept, both parts
  uint64_t calibration_hash = 0;   // corpus_xxh3 of a profile
  std::vector<std::string> notes;  // how the parts were made where it is not by request
};

struct Corpus {
  std::vector<CorpusItem> calibration, held_out;  // in an order that depends on seed and text only
  CorpusReport report;
};

// Lines and files that cannot be used are skipped and counted. kNotFound: a path; kInvalidArgument:
// an expression, an option; kDataLoss: nothing usable is left, with counts and reasons; kCancelled.
Result<Corpus> ReadCorpus(const CorpusOptions& options);

// The tokens of one item as a server would see them.
struct TokenSequence {
  std::vector<TokenId> tokens;
  size_t prompt_len = 0;  // from here on the recorded answer, if there is one
  bool is_text = false;   // may be cut into several windows; requests keep their beginning
  bool has_bos = false;   // every window of it begins with tokens[0]
};

class CorpusEncoder {
 public:
  // kUnsupported: a chat template that is not understood. Without a template, messages are joined
  // by empty lines (has_template() tells).
  static Result<CorpusEncoder> Create(const Tokenizer& tokenizer);
  // A chat through the template with the header of an answer, then the recorded answer and the
  // token that ends it. kInvalidArgument: the template refuses these messages.
  Result<TokenSequence> Encode(const CorpusItem& item) const;
  bool has_template() const { return chat_template_.has_value(); }

 private:
  explicit CorpusEncoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  const Tokenizer* tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  TokenId end_of_turn_ = -1;
};

// Tokens really used.
struct WindowsReport {
  int64_t context_len = 0;
  int64_t tokens = 0, windows = 0;
  int64_t sequences = 0;                       // requests and texts in them
  int64_t median = 0, p90 = 0, max = 0;        // tokens of a sequence before it was cut
  int64_t full_length = 0;                     // sequences at least as long as the context
  int64_t cut = 0;                             // sequences longer than a window
  int64_t cut_tokens = 0;                      // of requests, behind the context: not used
  int64_t joined = 0;                          // sequences that share a window with others
  int64_t left_out_tokens = 0;                 // beyond max_tokens
  int64_t repeated_tokens = 0;                 // prompts that came before, with another answer
  int64_t too_short = 0;                       // ends of texts under kMinWindow tokens
  std::vector<CorpusReport::Skipped> skipped;  // what the chat template refused
  std::vector<std::string> notes;
  std::vector<std::string> warnings;  // that name the risk: too few tokens, none as long as served
};

struct Windows {
  std::vector<std::vector<TokenId>> windows;  // each at most context_len, at least kMinWindow long
  WindowsReport report;
};

inline constexpr int64_t kMinWindow = 32;
// Under so many tokens a calibration rests on too little.
inline constexpr int64_t kFewTokens = 50000;

// What windows are for decides which risks are named: what calibrates needs many tokens.
enum class WindowsUse { kCalibration, kEvaluation };

// Long texts are cut into windows, long requests after the first context_len tokens; short ones
// share a window, first fit. At most `max_tokens` (0: all), chosen by `seed`. kDataLoss: no window.
Result<Windows> PackWindows(const std::vector<TokenSequence>& sequences, int64_t context_len,
                            int64_t max_tokens, uint64_t seed,
                            WindowsUse use = WindowsUse::kCalibration);
// Encodes and packs.
Result<Windows> PackWindows(const CorpusEncoder& encoder, const std::vector<CorpusItem>& items,
                            int64_t context_len, int64_t max_tokens, uint64_t seed,
                            WindowsUse use = WindowsUse::kCalibration,
                            const ProgressSink& progress = {});

// Under the keys that a report and `--json` show.
nlohmann::ordered_json CorpusJson(const CorpusReport& report);
nlohmann::ordered_json WindowsJson(const WindowsReport& report);
// Lines for a person: what was read, used, dropped and why.
std::string CorpusText(const CorpusReport& report);
// Of these the ones that tell what was skipped and dropped: "3 dropped as duplicates".
std::vector<std::string> CorpusLosses(const CorpusReport& report);
std::string WindowsText(const WindowsReport& report);

}  // namespace tq
