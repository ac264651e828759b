// tq eval adversarial: texts that a cache which blurs details gets wrong.
#include <fmt/format.h>

#include <memory>
#include <tuple>

#include "cli/eval/eval.h"
#include "cli/eval/task_flags.h"
#include "cli/eval/trials_text.h"
#include "runtime/evaluate/tasks/adversarial.h"

namespace tq::cli {
namespace {

struct AdversarialFlags : TaskFlags {
  int64_t length = 2048;
  int questions = 10;
  std::string level = "auto";
  bool quick = false;
};

Result<int> RunEvalAdversarial(const AdversarialFlags& flags) {
  TQ_RETURN_IF_ERROR(flags.Validate());
  if (flags.length < 256 || flags.length > (1 << 24)) {
    return InvalidArgument("--length ", flags.length, " is outside 256..", 1 << 24);
  }
  if (flags.questions < 1 || flags.questions > 1000) {
    return InvalidArgument("--questions ", flags.questions, " is outside 1..1000");
  }
  AdversarialOptions options;
  options.length = flags.quick ? 1024 : flags.length;
  options.questions = flags.quick ? 4 : flags.questions;
  TQ_ASSIGN_OR_RETURN(options.kinds, ChooseKinds(AdversarialKinds(), flags.Kinds()));
  options.seed = flags.data.seed;
  TQ_ASSIGN_OR_RETURN(options.run, flags.RunOptions());
  options.level = flags.level == "auto"   ? DefaultLevel(options.run.form)
                  : flags.level == "easy" ? AdversarialLevel::kEasy
                                          : AdversarialLevel::kHard;
  TQ_ASSIGN_OR_RETURN(auto text, ReadTaskText(flags, options.length));
  std::tie(options.text_name, options.text) = std::move(text);
  TQ_ASSIGN_OR_RETURN(TaskResponders responders,
                      TaskResponders::Open(flags, options.length + kTaskAnswerTokens));
  ProgressBar progress(flags.output.quiet);
  options.run.progress = progress.sink();
  TQ_ASSIGN_OR_RETURN(const AdversarialResult result,
                      RunAdversarial(responders.baseline(), responders.candidates(), options));
  progress.Clear();
  const std::string command =
      "tq eval adversarial" + flags.CommandLine() +
      (flags.level == "auto" ? "" : " --level " + flags.level) +
      (flags.quick ? " --quick"
                   : fmt::format(" --length {} --questions {}", flags.length, flags.questions));
  TQ_RETURN_IF_ERROR(
      PrintTask(flags, responders, command,
                {"Adversarial texts: " + Sides(result.trials), AdversarialJson(result),
                 AdversarialSection(result), TrialsText(result.trials)}));
  return kDone;
}

}  // namespace

Command AddEvalAdversarial(CLI::App& app) {
  CLI::App* command = AddCommand(
      app, "adversarial", "Near-duplicates, contradictions, distractors, exact copies, patterns",
      "tq eval adversarial --kv k4v4,k3v2 --quick --report adversarial.html");
  auto flags = std::make_shared<AdversarialFlags>();
  flags->Add(command);
  flags->AddTrialFlags(command, AdversarialKinds());
  command->add_option("--length", flags->length, "Tokens of a text, question included")
      ->type_name("N");
  command->add_option("--questions", flags->questions, "Questions of each kind")->type_name("N");
  command
      ->add_option(
          "--level", flags->level,
          "easy: few look-alikes, which small models can tell apart; hard: as many as there "
          "is room for; auto: easy, but hard in chats")
      ->check(CLI::IsMember({"auto", "easy", "hard"}));
  command->add_flag("--quick", flags->quick, "1,024 tokens, 4 questions of each kind");
  return {"adversarial", [flags] { return RunEvalAdversarial(*flags); }};
}

}  // namespace tq::cli
