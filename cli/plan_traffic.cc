#include "cli/plan_traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "cli/common.h"
#include "cli/loaded_model.h"
#include "cli/table.h"
#include "runtime/evaluate/input_file.h"
#include "runtime/formats/gguf.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/file.h"

namespace tq::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

Json DistributionJson(const Distribution& d) {
  return {{"mean", d.mean}, {"median", d.median}, {"p90", d.p90}, {"p99", d.p99}, {"max", d.max}};
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

Result<Traffic> LoadTraffic(const std::string& path, const std::string& model_path) {
  TQ_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path));
  TokenCounter count;
  std::unique_ptr<Tokenizer> tokenizer;
  Status status;
  const bool is_folder = IsDirectory(model_path);
  if (is_folder || std::filesystem::path(model_path).extension() == ".gguf") {
    const auto open = [&]() -> Status {
      TQ_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model_path));
      TQ_ASSIGN_OR_RETURN(tokenizer, Tokenizer::FromGguf(file));
      return OkStatus();
    };
    status = open();
    // A folder may be planned with nothing but its config.json.
    if (!status.ok() && !is_folder) return status;
  }
  if (tokenizer != nullptr) {
    count = [&](std::string_view s) {
      return static_cast<int64_t>(tokenizer->Encode(std::string(s)).size());
    };
  }
  TQ_ASSIGN_OR_RETURN(Traffic traffic, ReadTraffic(text, path, count));
  if (!status.ok() && !traffic.longest_text.empty()) {
    traffic.notes.push_back("texts are not counted with the model's tokenizer: " +
                            std::string(status.message()));
  }
  return traffic;
}

Result<FarAttention> RunFarAttention(const Traffic& traffic, const ModelFlags& model,
                                     const OutputFlags& output, int64_t max_tokens) {
  if (traffic.longest_text.empty()) {
    return Unsupported("--attention reads the texts of the log, and this one has none");
  }
  TQ_ASSIGN_OR_RETURN(const LoadedModel loaded, LoadModel(model, output, max_tokens));
  std::vector<TokenId> tokens = loaded.tokenizer->Encode(traffic.longest_text);
  if (max_tokens == 0) max_tokens = std::max(1024, loaded.model->arch().context_len);
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(max_tokens)));
  ProgressBar progress(output.quiet);
  return MeasureFarAttention(*loaded.model, tokens, progress.sink(), &InterruptFlag());
}

std::string TrafficText(const Suitability& s, const Traffic& traffic, const Planner& planner,
                        const FarAttention* far) {
  std::string out =
      fmt::format("{} requests, judged for {} with {} on {}\n\n",
                  FormatCount(static_cast<int64_t>(s.num_requests)), planner.spec().name,
                  planner.format().name, planner.options().machine.title);
  TextTable lengths({"tokens", "mean", "median", "90 %", "99 %", "most"});
  const auto add = [&](const char* name, const Distribution& d) {
    lengths.Add({name, fmt::format("{:.0f}", d.mean), FormatCount(d.median), FormatCount(d.p90),
                 FormatCount(d.p99), FormatCount(d.max)});
  };
  add("context", s.context);
  add("prompt", s.prompt);
  add("completion", s.completion);
  out += lengths.ToString() + "\n";
  TextTable facts({"figure", "value"}, {0, 1});
  const auto fact = [&](const char* name, const std::string& value) { facts.Add({name, value}); };
  fact("prefix_reuse", s.prefix_reuse ? Percent(*s.prefix_reuse) + " of prompt tokens"
                                      : "not known: the log has no texts");
  if (far != nullptr) {
    std::string masses;
    for (const FarAttention::Mass& m : far->masses) {
      masses += fmt::format("{}{} beyond {}", masses.empty() ? "" : ", ",
                            m.mean ? Percent(*m.mean) : std::string("not known"),
                            FormatCount(m.distance));
    }
    fact("far_attention",
         fmt::format("{} (over {} tokens of the longest text)", masses, FormatCount(far->tokens)));
  }
  fact("prefill", Percent(s.prefill_token_share) + " of tokens" +
                      (s.prefill_time_share
                           ? ", " + Percent(*s.prefill_time_share) + " of time by the roofline"
                           : ""));
  if (s.concurrency) {
    fact("concurrency",
         fmt::format("mean {:.1f}, peak {}, {:.3g} requests a second{}", s.concurrency->mean,
                     FormatCount(s.concurrency->peak), s.concurrency->requests_per_second,
                     s.durations_estimated ? " (durations by the roofline)" : ""));
  } else {
    fact("concurrency", "not known: it needs times, and durations or a known bandwidth");
  }
  fact("cache in the memory bill", Percent(s.cache_memory_share) + " with f16");
  fact("requests that do not pay",
       Percent(s.share_below_break_even) +
           (s.break_even_context ? " are under " + FormatCount(*s.break_even_context) : ""));
  fact("sequences on a device",
       fmt::format("{} with f16, {} with {}, at {} tokens (90 %)", FormatCount(s.sequences_f16),
                   FormatCount(s.sequences_kv), planner.format().name, FormatCount(s.context.p90)));
  if (s.sequences_f16 > 0) fact("more requests for a card", FormatRatio(s.more_requests));
  out += facts.ToString() + "\n";
  out += s.verdict + ".\n";
  for (const std::string& reason : s.reasons) out += "- " + reason + "\n";
  for (const std::string& note : traffic.notes) out += "note: " + note + "\n";
  return out;
}

Json TrafficJson(const Suitability& s, const Traffic& traffic, const FarAttention* far) {
  Json j;
  j["requests"] = s.num_requests;
  j["context"] = DistributionJson(s.context);
  j["prompt"] = DistributionJson(s.prompt);
  j["completion"] = DistributionJson(s.completion);
  j["prefix_reuse"] = OrNull(s.prefix_reuse);
  j["far_attention"] = nullptr;
  if (far != nullptr) {
    j["far_attention"] = {{"tokens", far->tokens}};
    for (const FarAttention::Mass& m : far->masses) {
      j["far_attention"]["beyond_" + std::to_string(m.distance)] = OrNull(m.mean);
    }
  }
  j["prefill_token_share"] = s.prefill_token_share;
  j["prefill_time_share"] = OrNull(s.prefill_time_share);
  if (s.concurrency) {
    j["concurrency"] = {{"mean", s.concurrency->mean},
                        {"peak", s.concurrency->peak},
                        {"requests_per_second", s.concurrency->requests_per_second},
                        {"durations_estimated", s.durations_estimated}};
  } else {
    j["concurrency"] = nullptr;
  }
  j["cache_memory_share"] = s.cache_memory_share;
  j["break_even_context"] = OrNull(s.break_even_context);
  j["share_below_break_even"] = s.share_below_break_even;
  j["sequences"] = {{"f16", s.sequences_f16}, {"kv", s.sequences_kv}};
  j["more_requests"] = s.more_requests;
  j["step_gain"] = s.step_gain;
  j["worth_it"] = s.worth_it;
  j["verdict"] = s.verdict;
  j["reasons"] = s.reasons;
  j["notes"] = traffic.notes;
  return j;
}

}  // namespace tq::cli
