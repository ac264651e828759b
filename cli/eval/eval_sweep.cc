// tq eval sweep: formats and group lengths: bits against KL against milliseconds.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/bench/decode_run.h"
#include "cli/bench/measure.h"
#include "cli/eval/eval.h"
#include "cli/eval/eval_input.h"
#include "cli/table.h"
#include "runtime/evaluate/sweep.h"

namespace tq::cli {
namespace {

struct SweepFlags : EvalFlags {
  int64_t depth = 8192;
  int steps = 15, at_once = 8;
};

// The presets, and the widths people use with ever finer scales.
constexpr char kDefaultFormats[] =
    "k8v8,k8v4,k6v6,k5v5,k4v4,k4v2,k3v3,k3v2,k2v2,"
    "k4v4-group64,k4v4-group32,k4v4-group16,"
    "k3v3-group64,k3v3-group32,k3v3-group16,"
    "k2v2-group64,k2v2-group32,k2v2-group16";

std::string TextReport(const SweepResult& r) {
  std::string out =
      fmt::format("{} of up to {} tokens through {}, every format beside f16\n\n",
                  FormatCount(r.windows, "window"), FormatCount(r.context_len), r.model_name);
  TextTable table({"format", "bits per\nvalue", "scales", "KL mean", "KL 99 %", "same top",
                   "ppl ratio", "ms per\nstep", "bits\nPareto", "time\nPareto", "beaten by"},
                  {0, 10});
  for (const SweepRow& row : r.rows) {
    table.Add({row.name, fmt::format("{:.3f}", row.bits_per_value),
               fmt::format("{:.1f} %", 100 * row.scales_share),
               fmt::format("{:.5f} \u00b1 {:.5f}", row.all.mean, row.all.mean_stderr),
               fmt::format("{:.4f}", row.all.p99), fmt::format("{:.2f} %", 100 * row.all.same_top),
               fmt::format("{:.5f}", row.all.ppl_ratio),
               row.step_ms ? fmt::format("{:.2f}", *row.step_ms) : "-",
               row.on_bits_front ? "*" : "", row.on_time_front ? "*" : "",
               row.beaten_by.empty() ? "-" : row.beaten_by});
  }
  out += table.ToString();
  out +=
      "\nScales: share of a sealed block. Pareto *: no other has both less of it and a smaller "
      "KL. Beaten by: no more bits, a KL smaller beyond the standard errors.\n";
  if (r.plain_step_ms) {
    out += fmt::format("A step of the f16 cache at {} tokens takes {:.2f} ms.\n",
                       FormatCount(r.depth), *r.plain_step_ms);
  }
  for (const std::string& finding : r.findings) out += finding + "\n";
  if (!r.informative) out += "Not informative: " + r.note + "\n";
  return out;
}

Result<int> RunEvalSweep(const SweepFlags& flags) {
  if (flags.depth < 0 || flags.depth > (1 << 20)) {
    return InvalidArgument("--depth ", flags.depth, " is outside 0..", 1 << 20);
  }
  TQ_ASSIGN_OR_RETURN(EvalInput input, EvalInput::Load(flags));
  TQ_ASSIGN_OR_RETURN(std::vector<KvChoice> choices, input.ChooseAll());
  SweepOptions options;
  TQ_ASSIGN_OR_RETURN(options.reference, input.Reference());
  for (const KvChoice& choice : choices) {
    options.formats.push_back({choice.name, &input.model(), choice.config});
  }
  options.texts = input.texts();
  options.depth = flags.depth;
  ProgressBar progress(flags.output.quiet);
  options.measure = input.Measure(&progress);
  options.measure.at_once = flags.at_once;
  StepSeconds seconds;
  if (flags.depth > 0) {
    options.step_ms = [&](const Stream& stream) -> Result<double> {
      KvChoice choice;
      choice.config = stream.config;
      DecodeRun run(*stream.model, choice, &seconds, *input.loaded().pool);
      TQ_RETURN_IF_ERROR(run.Start(flags.depth, 0));
      TQ_RETURN_IF_ERROR(run.Steps(flags.steps));
      return Median(run.step_ms());
    };
  }
  TQ_ASSIGN_OR_RETURN(const SweepResult result, RunSweep(options));
  progress.Clear();
  const std::string command = flags.CommandLine("sweep") + fmt::format(" --depth {}", flags.depth);
  TQ_RETURN_IF_ERROR(
      input.WriteReport("Formats and how fine their scales are", SweepSection(result), command));
  return input.Print(SweepJson(result), TextReport(result), kDone);
}

}  // namespace

Command AddEvalSweep(CLI::App& app) {
  CLI::App* command = AddCommand(
      app, "sweep", "Formats and group lengths: bits against KL against milliseconds",
      "tq eval sweep --kv k8v4,k4v4,k4v4-group32,k5v5 --context 1024 --windows 1 --depth 2048");
  auto flags = std::make_shared<SweepFlags>();
  flags->kv.kv = kDefaultFormats;
  flags->windows = 1;
  flags->Add(command);
  command
      ->add_option("--depth", flags->depth, "Tokens in the cache when a step is timed; 0: no times")
      ->type_name("N");
  command->add_option("--steps", flags->steps, "Steps of each format that are timed")
      ->check(CLI::Range(1, 10000));
  command->add_option("--at-once", flags->at_once, "Caches in memory at once")
      ->check(CLI::Range(1, 1000));
  return {"sweep", [flags] { return RunEvalSweep(*flags); }};
}

}  // namespace tq::cli
