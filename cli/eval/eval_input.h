// What kld, ppl, blame and sweep share: their flags, the model or pair of models, the windows of
// text, caches by name, and where the numbers come from.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/common.h"
#include "cli/data_flags.h"
#include "cli/kv_choice.h"
#include "cli/loaded_model.h"
#include "runtime/evaluate/kld_run.h"

namespace tq::cli {

struct EvalFlags {
  ModelFlags model;
  KvFlags kv;
  OutputFlags output;
  DataFlags data;
  std::string model_baseline, report;
  std::string cut;  // packed, spread or llama; empty: see Cut()
  int64_t context = 2048;
  std::optional<int64_t> score_from;
  int windows = 4;

  void Add(CLI::App* app);          // all but the following
  void AddBaseline(CLI::App* app);  // --model-baseline
  // What can be refused before anything is loaded.
  Status Validate() const;
  // Packed where data, a part of it or a redaction is named, spread over the fetched text without.
  const char* Cut() const;
  // "tq eval NAME ..." that measures the same again.
  std::string CommandLine(const std::string& name) const;
};

class EvalInput {
 public:
  // Loads models and cuts the texts; notes go to stderr.
  static Result<EvalInput> Load(const EvalFlags& flags);

  Model& model() { return *loaded_.model; }
  // The model of the plain run: --model-baseline's, or model().
  Model& baseline() { return baseline_ ? *baseline_->model : *loaded_.model; }
  bool is_pair() const { return baseline_.has_value(); }
  const LoadedModel& loaded() const { return loaded_; }
  ThreadPool& pool() { return *loaded_.pool; }
  const KvModel& kv_model() const { return kv_model_; }
  const std::vector<EvalText>& texts() const { return texts_; }

  // The plain cache of the baseline.
  Result<Stream> Reference() const;
  // One preset for all heads of the baseline, as a noise floor.
  Result<Stream> Floor() const;
  // A name of --kv with pins and windows; its notes go to stderr, each once.
  Result<KvChoice> Choose(const std::string& kv);
  // The names of --kv, in order, each with every --v-skip (a list here); kInvalidArgument when one
  // stands there twice.
  Result<std::vector<KvChoice>> ChooseAll();
  // Positions, threads and Ctrl-C; the progress bar is the caller's.
  DivergenceOptions Measure(ProgressBar* progress) const;

  // The report that was asked for, if one was: a section and where its numbers come from.
  Status WriteReport(const std::string& title, const std::string& section,
                     const std::string& command) const;
  // The document (with the machine added) or the text, whichever was asked for; returns `code`.
  Result<int> Print(nlohmann::ordered_json json, const std::string& text, int code) const;

 private:
  Result<KvChoice> Choose(const std::string& kv, const std::string& v_skip);
  Status CutTexts();
  Status PackTexts();
  std::vector<std::pair<std::string, std::string>> Provenance(const std::string& command) const;

  EvalFlags flags_;
  LoadedModel loaded_;
  std::optional<LoadedModel> baseline_;
  KvModel kv_model_;
  std::vector<EvalText> texts_;
  std::optional<std::pair<CorpusReport, WindowsReport>> packed_;  // where texts_ are from
  std::vector<std::string> said_;
};

}  // namespace tq::cli
