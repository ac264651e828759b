// tq eval replay: recorded requests through the plain model and the quantized one, or through any
// two endpoints.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>

#include "cli/eval/eval.h"
#include "cli/eval/task_flags.h"
#include "cli/table.h"
#include "runtime/evaluate/similarity.h"
#include "runtime/evaluate/tasks/replay.h"
#include "runtime/evaluate/tasks/trial_report.h"
#include "turboquant/base/thread_pool.h"

namespace tq::cli {
namespace {

struct ReplayFlags : TaskFlags {
  std::string temperature = "0", embeddings;
  int64_t context = 0;
  int requests = 100, answer_tokens = 128, worst = 10;
  double same_from = 1;
  std::optional<double> max_difference;
  bool quick = false;
};

Result<ReplayOptions> Options(const ReplayFlags& flags) {
  ReplayOptions options;
  if (flags.temperature != "recorded") {
    double value = 0;
    const char* const end = flags.temperature.data() + flags.temperature.size();
    const auto [stop, error] = std::from_chars(flags.temperature.data(), end, value);
    if (error != std::errc() || stop != end || !(value >= 0 && value <= 2)) {
      return InvalidArgument("--temperature '", flags.temperature,
                             "' is neither a number of 0..2 nor the word recorded");
    }
    options.temperature = value;
  }
  if (flags.requests < 1 || flags.answer_tokens < 1 || flags.worst < 0) {
    return InvalidArgument("--requests ", flags.requests, " --answer-tokens ", flags.answer_tokens,
                           " --worst ", flags.worst, ": expected at least 1, 1 and 0");
  }
  if (!(flags.same_from >= 0 && flags.same_from <= 1)) {
    return InvalidArgument("--same-from ", flags.same_from, " is outside 0..1");
  }
  if (flags.max_difference && !(*flags.max_difference >= 0 && *flags.max_difference <= 1)) {
    return InvalidArgument("--max-difference ", *flags.max_difference, " is outside 0..1");
  }
  options.max_tokens = flags.quick ? std::min(flags.answer_tokens, 48) : flags.answer_tokens;
  options.num_worst = flags.worst;
  options.same_from = flags.same_from;
  options.max_difference = flags.max_difference;
  options.seed = flags.data.seed;
  options.cancel = &InterruptFlag();
  return options;
}

std::string Percents(double low, double high) {
  return fmt::format("{:.1f} to {:.1f} %", 100 * low, 100 * high);
}

std::string TextReport(const ReplayResult& r) {
  TextTable table({"answers of", "answered", "same\ntext", "different", "difference\nrate",
                   "95 %\ninterval", "similarity", "first diff.\nat", "JSON\nbroken", "JSON\nshape",
                   "tool\ncalls", "ends", "length", "repetition"});
  const auto add = [&](const std::string& name, int64_t requests, const ReplaySide& s,
                       const std::string& rate, const std::string& interval) {
    table.Add(
        {name, FormatCount(requests), fmt::format("{:.1f} %", 100 * s.exact_rate),
         fmt::format("{:.1f} %", 100 * s.different_rate), rate, interval,
         fmt::format("{:.3f}", s.similarity),
         s.median_first_difference < 0 ? "-" : fmt::format("{:.0f}", s.median_first_difference),
         fmt::format("{}/{}", s.json_broken, s.json), fmt::format("{}/{}", s.shape_differs, s.json),
         fmt::format("{}/{}", s.tool_calls_differ, s.tool_calls), std::to_string(s.finish_differs),
         fmt::format("{:.2f}x", s.length_ratio), fmt::format("{:.1f} %", 100 * s.repetition)});
  };
  add(ColumnName(r.baseline, "baseline") + " again", r.requests, r.floor, "-", "-");
  for (const ReplayCandidate& c : r.candidates) {
    add(ColumnName(c.name, "candidate"), c.requests, c.side,
        fmt::format("{:.1f} %", 100 * c.difference_rate),
        Percents(c.difference_interval.low, c.difference_interval.high));
  }
  std::string out = fmt::format("{} through {} and each candidate\n\n{}\n",
                                FormatCount(r.requests, "request"), r.baseline, table.ToString());
  out += fmt::format(
      "Difference rate: how often answers differ, minus how often {} differs from "
      "itself{}. Similarity: {}.\n",
      r.baseline, r.floor_is_exact ? " (never: the same request gives the same answer)" : "",
      r.similarity_name);
  for (const ReplayResult::Skipped& s : r.skipped) {
    out += fmt::format("Left out: {} ({}; {})\n", s.count, Excerpt(s.reason, 200), s.example);
  }
  if (r.unconstrained > 0) {
    out += fmt::format("response_format was left out of {}: a local model is not held to it.\n",
                       FormatCount(r.unconstrained, "request"));
  }
  if (!r.informative) out += "Not informative: " + r.note + "\n";
  for (const ReplayCandidate& c : r.candidates) {
    if (!c.passed()) {
      out += fmt::format("{}: FAILED, {}\n", c.name, c.failure);
    } else if (r.max_difference) {
      out += fmt::format("{}: passed the gate (at most {:.1f} % were asked for)\n", c.name,
                         100 * *r.max_difference);
    }
  }
  return out;
}

Result<int> RunEvalReplay(const ReplayFlags& flags) {
  TQ_RETURN_IF_ERROR(flags.Validate());
  TQ_ASSIGN_OR_RETURN(ReplayOptions options, Options(flags));
  if (!flags.embeddings.empty()) {
    TQ_RETURN_IF_ERROR(EmbeddingsFolder(flags.embeddings).status());
  }
  if (flags.data.data.empty()) {
    return InvalidArgument(
        "there is nothing to replay; give a log of OpenAI requests with --data FILE.jsonl");
  }
  TQ_ASSIGN_OR_RETURN(Corpus corpus, flags.data.Read(2048, flags.output));
  TQ_ASSIGN_OR_RETURN(options.redact, MakeRedact(flags.data));
  options.requests = flags.data.ItemsOf(std::move(corpus));
  options.most_requests =
      static_cast<size_t>(flags.quick ? std::min(flags.requests, 8) : flags.requests);
  ThreadPool pool(flags.model.threads);
  std::unique_ptr<TextEmbedder> embedder;
  if (!flags.embeddings.empty()) {
    TQ_ASSIGN_OR_RETURN(embedder, TextEmbedder::Load(flags.embeddings, pool));
    options.similarity = [&](const std::string& a, const std::string& b) {
      return embedder->Similarity(a, b);
    };
    options.similarity_name =
        "embeddings of " + std::filesystem::path(flags.embeddings).filename().string();
  }
  TQ_ASSIGN_OR_RETURN(TaskResponders responders, TaskResponders::Open(flags, flags.context));
  ProgressBar progress(flags.output.quiet);
  options.progress = progress.sink();
  TQ_ASSIGN_OR_RETURN(const ReplayResult result,
                      RunReplay(responders.baseline(), responders.candidates(), options));
  progress.Clear();
  std::string command = "tq eval replay" + flags.CommandLine();
  command += fmt::format(" --requests {} --answer-tokens {} --temperature {}", flags.requests,
                         flags.answer_tokens, flags.temperature);
  if (flags.context > 0) command += fmt::format(" --context {}", flags.context);
  if (flags.same_from < 1) command += fmt::format(" --same-from {}", flags.same_from);
  if (!flags.embeddings.empty()) command += " --embeddings " + flags.embeddings;
  if (flags.max_difference) command += fmt::format(" --max-difference {}", *flags.max_difference);
  if (flags.quick) command += " --quick";
  TQ_RETURN_IF_ERROR(PrintTask(flags, responders, command,
                               {"Replay: " + result.baseline, ReplayJson(result),
                                ReplaySection(result), TextReport(result)}));
  return result.passed() ? kDone : kCheckFailed;
}

}  // namespace

Command AddEvalReplay(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "replay", "Recorded requests through both, compared answer by answer",
                 "tq eval replay --data requests.jsonl --kv k4v4 --max-difference 0.05 --report "
                 "replay.html");
  auto flags = std::make_shared<ReplayFlags>();
  flags->data.shared_prefix = 1;  // requests of one conversation are requests
  flags->Add(command);
  command->add_option("--requests", flags->requests, "Most requests, chosen by --seed")
      ->type_name("N");
  command
      ->add_option("--answer-tokens", flags->answer_tokens,
                   "Most tokens of an answer, where its request allows more")
      ->type_name("N");
  command
      ->add_option("--temperature", flags->temperature,
                   "Of all requests; recorded = as each one says")
      ->type_name("T");
  command
      ->add_option("--context", flags->context,
                   "Most tokens of a local prompt and answer; 0 = what the model was trained for")
      ->type_name("N");
  command
      ->add_option("--same-from", flags->same_from,
                   "Answers this similar count as the same; 1 = only equal texts do")
      ->type_name("0..1");
  command
      ->add_option("--embeddings", flags->embeddings,
                   "Judge similarity with this sentence embedding model (default: words in common)")
      ->type_name("FOLDER");
  command
      ->add_option("--max-difference", flags->max_difference,
                   "Exit with 1 when the difference rate is above this, or cannot be told")
      ->type_name("0..1");
  command->add_option("--worst", flags->worst, "Cases that the report shows side by side")
      ->type_name("N");
  command->add_flag("--quick", flags->quick, "8 requests, 48 tokens of each answer");
  return {"replay", [flags] { return RunEvalReplay(*flags); }};
}

}  // namespace tq::cli
