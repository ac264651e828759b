// tq eval needle: facts planted in a long text, asked of the plain model and of the quantized one.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "cli/bench/measure.h"
#include "cli/eval/eval.h"
#include "cli/eval/task_flags.h"
#include "cli/eval/trials_text.h"
#include "runtime/evaluate/tasks/needle.h"

namespace tq::cli {
namespace {

struct NeedleFlags : TaskFlags {
  std::string lengths = "1k,2k,4k", depths = "10,30,50,70,90";
  int samples = 1;
  bool quick = false;
};

Result<NeedleOptions> Options(const NeedleFlags& flags) {
  NeedleOptions options;
  TQ_ASSIGN_OR_RETURN(options.lengths, ParseCounts("--lengths", flags.lengths, 256, 1 << 24));
  TQ_ASSIGN_OR_RETURN(const std::vector<int64_t> depths,
                      ParseCounts("--depths", flags.depths, 0, 100));
  options.depths.clear();
  for (const int64_t percent : depths) {
    options.depths.push_back(static_cast<double>(percent) / 100);
  }
  if (flags.quick) {
    options.lengths = {1024};
    options.depths = {0.1, 0.5, 0.9};
  }
  if (flags.samples < 1 || flags.samples > 1000) {
    return InvalidArgument("--samples ", flags.samples, " is outside 1..1000");
  }
  options.samples = flags.samples;
  TQ_ASSIGN_OR_RETURN(options.kinds, ChooseKinds(NeedleKinds(), flags.Kinds()));
  options.seed = flags.data.seed;
  TQ_ASSIGN_OR_RETURN(options.run, flags.RunOptions());
  return options;
}

Result<int> RunEvalNeedle(const NeedleFlags& flags) {
  TQ_RETURN_IF_ERROR(flags.Validate());
  TQ_ASSIGN_OR_RETURN(NeedleOptions options, Options(flags));
  const int64_t longest = *std::max_element(options.lengths.begin(), options.lengths.end());
  TQ_ASSIGN_OR_RETURN(auto text, ReadTaskText(flags, longest));
  std::tie(options.text_name, options.text) = std::move(text);
  TQ_ASSIGN_OR_RETURN(TaskResponders responders,
                      TaskResponders::Open(flags, longest + kTaskAnswerTokens));
  ProgressBar progress(flags.output.quiet);
  options.run.progress = progress.sink();
  TQ_ASSIGN_OR_RETURN(const NeedleResult result,
                      RunNeedle(responders.baseline(), responders.candidates(), options));
  progress.Clear();
  std::string text_report = TrialsText(result.trials);
  for (const std::string& kind : result.kinds) {
    text_report += HeatMapText(result.trials, kind, result.lengths, result.depths);
  }
  std::string command = "tq eval needle" + flags.CommandLine();
  command += flags.quick ? " --quick"
                         : fmt::format(" --lengths {} --depths {}", flags.lengths, flags.depths);
  command += fmt::format(" --samples {}", flags.samples);
  TQ_RETURN_IF_ERROR(PrintTask(flags, responders, command,
                               {"Needles: " + Sides(result.trials), NeedleJson(result),
                                NeedleSection(result), std::move(text_report)}));
  return kDone;
}

}  // namespace

Command AddEvalNeedle(CLI::App& app) {
  CLI::App* command = AddCommand(app, "needle", "Facts planted in a long text: found or missed",
                                 "tq eval needle --kv k4v4,k3v2 --quick --report needle.html");
  auto flags = std::make_shared<NeedleFlags>();
  flags->Add(command);
  flags->AddTrialFlags(command, NeedleKinds());
  command->add_option("--lengths", flags->lengths, "Tokens of the texts, question included")
      ->type_name("N,...");
  command->add_option("--depths", flags->depths, "Where facts are planted, in percent of the text")
      ->type_name("N,...");
  command->add_option("--samples", flags->samples, "Texts of each kind and length")->type_name("N");
  command->add_flag("--quick", flags->quick, "1,024 tokens, depths of 10, 50 and 90 %");
  return {"needle", [flags] { return RunEvalNeedle(*flags); }};
}

}  // namespace tq::cli
