// What needle, adversarial and replay share: their flags, and the two sides that are compared: a
// local model with the plain and with quantized caches, or any OpenAI-compatible endpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/common.h"
#include "cli/data_flags.h"
#include "cli/kv_choice.h"
#include "cli/loaded_model.h"
#include "runtime/evaluate/tasks/responder.h"
#include "runtime/evaluate/tasks/trial.h"

namespace tq::cli {

struct EndpointFlags {
  std::string url, model, key_variable;
};

struct TaskFlags {
  ModelFlags model;
  KvFlags kv;
  OutputFlags output;
  EndpointFlags baseline, candidate;
  DataFlags data;
  double timeout_seconds = 600;
  int retries = 4;
  std::string report;
  std::string kinds, form = "auto";  // of AddTrialFlags

  void Add(CLI::App* app);
  // --kinds and --form, for questions that are scored exactly.
  void AddTrialFlags(CLI::App* app, std::span<const TrialKind> known);
  // What can be refused before anything is loaded or asked.
  Status Validate() const;
  bool needs_model() const { return baseline.url.empty() || candidate.url.empty(); }
  bool has_endpoint() const { return !baseline.url.empty() || !candidate.url.empty(); }
  std::vector<std::string> Kinds() const;
  // The form of --form: auto is primed for local models, a chat where an endpoint is asked.
  Result<TrialOptions> RunOptions() const;
  // Those of the local model and its caches.
  std::string LocalCommandLine() const;
  // The flags of both sides and of the data, to make the same again; begins with a blank.
  std::string CommandLine() const;
};

// Room for an answer and, in chats, for the template around the question.
inline constexpr int64_t kTaskAnswerTokens = 512;

// The folder of the sentence embeddings: `named`, or where they are fetched to. kNotFound says how
// to get them.
Result<std::string> EmbeddingsFolder(const std::string& named);

// A name and a text of at least `tokens` tokens, as far as the data goes: texts, and what requests
// and recorded answers say, joined.
Result<std::pair<std::string, std::string>> ReadTaskText(const TaskFlags& flags, int64_t tokens);

// The redactions of the data, for texts that are shown; empty without any.
Result<std::function<std::string(const std::string&)>> MakeRedact(const DataFlags& data);

// The two sides, ready to answer.
class TaskResponders {
 public:
  // `context`: most tokens of a local prompt with its answer; 0: what the model was trained for.
  // Notes go to stderr.
  static Result<TaskResponders> Open(const TaskFlags& flags, int64_t context);

  Responder& baseline() { return *baseline_; }
  std::span<Responder* const> candidates() { return candidates_; }
  const LoadedModel* loaded() const { return loaded_ ? &*loaded_ : nullptr; }
  // Models, endpoints and machine: for reports.
  std::vector<std::pair<std::string, std::string>> Provenance(const std::string& command) const;

 private:
  std::optional<LoadedModel> loaded_;  // goes last
  std::unique_ptr<Responder> baseline_;
  std::vector<std::unique_ptr<Responder>> owned_;
  std::vector<Responder*> candidates_;
};

// What a task ends with.
struct TaskOutput {
  std::string title;
  nlohmann::ordered_json document;  // for --json; machine and version are added
  std::string section;              // of the report
  std::string text;
};
// Writes the report that was asked for; prints the document or the text.
Status PrintTask(const TaskFlags& flags, const TaskResponders& responders,
                 const std::string& command, TaskOutput output);

}  // namespace tq::cli
