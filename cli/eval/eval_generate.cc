// tq eval generate: several answers to each prompt from the plain model and from the quantized one,
// compared in meaning and in detail.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "cli/eval/eval.h"
#include "cli/eval/generate_flags.h"
#include "cli/table.h"

namespace tq::cli {
namespace {

struct Flags : TaskFlags {
  GenerateFlags generate;
  std::optional<double> max_loss;
};

std::string TextReport(const GenerationsResult& r) {
  std::string out =
      fmt::format("{} answers to each prompt from {} and from {}, temperature {:g}\n\n",
                  r.generations, r.baseline_name, r.candidate_name, r.temperature);
  TextTable table({"prompts", "number", "plain with\nitself", "candidate\nwith plain",
                   "difference\nin meaning", "difference\nin facts", "same\nanswers",
                   "right, plain\nand candidate", "repetition,\nboth"});
  // Cells of several lines become rows.
  const auto add = [&](const std::string& name, const GenerationsGroup& g) {
    if (g.prompts == 0) return;
    const auto both = [](const Versus& v) {
      return v.prompts == 0 ? std::string("-")
                            : fmt::format("{:.0f} % {:.0f} %", 100 * v.baseline, 100 * v.candidate);
    };
    const bool facts = g.facts.prompts > 0;
    table.Add({name, FormatCount(g.prompts), fmt::format("{:.3f}", g.similarity.floor),
               fmt::format("{:.3f}", g.similarity.candidate),
               fmt::format("{:+.3f}", g.similarity.difference),
               facts ? fmt::format("{:+.3f}", g.facts.difference) : "-",
               fmt::format("{:.0f} %", 100 * g.same_answers), both(g.right), both(g.repetition)});
    const auto range = [](const Contrast& c) {
      return c.interval ? fmt::format("{:+.3f} to {:+.3f}", c.interval->low, c.interval->high)
                        : std::string();
    };
    if (g.similarity.interval) {
      table.Add({"", "", "", "", range(g.similarity), range(g.facts)});
    }
  };
  add("all", r.all);
  for (int g = 0; g < kNumPromptGroups; ++g) {
    add(PromptGroupName(static_cast<PromptGroup>(g)), r.groups[g]);
  }
  out += table.ToString();
  const Versus& drift = r.groups[static_cast<size_t>(PromptGroup::kLongAnswer)].drift;
  if (drift.prompts > 0) {
    out += fmt::format("\nDrift of long answers: plain {:.3f}, candidate {:.3f}.\n", drift.baseline,
                       drift.candidate);
  }
  out += fmt::format(
      "\nSimilarity: cosine of embeddings ({}); answers to different prompts have {:.2f}. Ranges "
      "are at 95 %.\n",
      r.embeddings_name, r.unrelated);
  if (r.failed > 0) out += "Not answered: " + FormatCount(r.failed, "prompt") + ".\n";
  if (!r.informative) out += "Not informative: " + r.note + ".\n";
  return out;
}

Result<int> Run(const Flags& flags) {
  TQ_RETURN_IF_ERROR(flags.Validate());
  TQ_RETURN_IF_ERROR(flags.generate.Validate());
  const int64_t long_tokens = flags.generate.prompts.long_tokens;
  TQ_ASSIGN_OR_RETURN(Corpus corpus, flags.data.Read(long_tokens, flags.output));
  TQ_ASSIGN_OR_RETURN(const auto text, ReadLongText(flags, long_tokens));
  TQ_ASSIGN_OR_RETURN(TaskResponders responders,
                      TaskResponders::Open(flags, flags.generate.ContextLen()));
  if (responders.candidates().size() != 1) {
    return InvalidArgument("--kv names ", responders.candidates().size(),
                           " caches; tq eval generate compares one at a time");
  }
  TQ_ASSIGN_OR_RETURN(
      GenerationsOptions options,
      flags.generate.Options(responders.baseline(), flags.data.ItemsOf(std::move(corpus)), text,
                             flags.data.seed));
  TQ_ASSIGN_OR_RETURN(options.redact, MakeRedact(flags.data));
  TQ_ASSIGN_OR_RETURN(const std::string folder, flags.generate.EmbeddingsFolder());
  ThreadPool pool(flags.model.threads);
  TQ_ASSIGN_OR_RETURN(const std::unique_ptr<TextEmbedder> embedder,
                      TextEmbedder::Load(folder, pool));
  ProgressBar progress(flags.output.quiet);
  options.progress = progress.sink();
  TQ_ASSIGN_OR_RETURN(
      const GenerationsResult result,
      RunGenerations(responders.baseline(), *responders.candidates().front(), *embedder, options));
  progress.Clear();
  const std::string command =
      "tq eval generate" + flags.CommandLine() + flags.generate.CommandLine();
  TQ_RETURN_IF_ERROR(
      PrintTask(flags, responders, command,
                {"Answers of " + result.candidate_name + " beside " + result.baseline_name,
                 GenerationsJson(result), GenerationsSection(result), TextReport(result)}));
  const std::string failure = FailureOf(result, flags.max_loss);
  if (failure.empty()) return kDone;
  PrintNote(flags.output, "FAILED: " + failure);
  return kCheckFailed;
}

}  // namespace

Command AddEvalGenerate(CLI::App& app) {
  CLI::App* command = AddCommand(app, "generate", "Answers compared in meaning, numbers and names",
                                 "tq eval generate --kv k4v4 --report generate.html");
  auto flags = std::make_shared<Flags>();
  flags->data.max_tokens = 1 << 17;
  flags->Add(command);
  flags->generate.Add(command);
  command
      ->add_option("--max-loss", flags->max_loss,
                   "Exit with 1 when the difference in meaning is below minus this, its whole "
                   "95 % range, or cannot be told")
      ->type_name("0..1");
  return {"generate", [flags] { return Run(*flags); }};
}

}  // namespace tq::cli
