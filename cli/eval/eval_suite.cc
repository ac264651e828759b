// tq eval suite: all evaluations as one regression test with a gate, a JUnit file and one page.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/eval/eval.h"
#include "cli/eval/generate_flags.h"
#include "runtime/evaluate/kld_run.h"
#include "runtime/evaluate/suite/suite.h"
#include "runtime/evaluate/tasks/adversarial.h"
#include "runtime/evaluate/tasks/needle.h"
#include "runtime/evaluate/tasks/replay.h"
#include "turboquant/base/file.h"

namespace tq::cli {
namespace {

struct Flags : TaskFlags {
  GenerateFlags generate;
  std::string gate, junit;
  bool print_gate = false, quick = false;
  int64_t context = 2048;
  int windows = 2;
  std::vector<int64_t> needle_lengths = {1024, 2048};
  std::vector<double> needle_depths = {0.1, 0.5, 0.9};
  int adversarial_questions = 4;
  size_t replay_requests = 16;

  // Fewer and shorter of everything.
  void MakeQuick() {
    context = std::min<int64_t>(context, 1024);
    windows = 1;
    needle_lengths = {1024};
    adversarial_questions = 2;
    replay_requests = 4;
    generate.generations = 2;
    generate.prompts.per_group = 2;
    generate.prompts.long_answers = 1;
    generate.prompts.long_answer_tokens = 256;
  }
  int64_t ContextLen() const {
    const int64_t longest = *std::max_element(needle_lengths.begin(), needle_lengths.end());
    return std::max({context, longest + kTaskAnswerTokens, generate.ContextLen()});
  }
};

// What --data gives.
struct Material {
  std::pair<std::string, std::string> text;  // name and text, to hide facts in
  std::vector<CorpusItem> items;

  bool has_requests() const {
    return std::any_of(items.begin(), items.end(),
                       [](const CorpusItem& item) { return item.kind != CorpusItem::Kind::kText; });
  }
};

// What the evaluations of one run share; alive until the last has ended.
class Evaluations {
 public:
  Evaluations(const Flags& flags, const Material& material, TaskResponders& responders)
      : flags_(flags), material_(material), responders_(responders) {}

  static std::vector<std::string> Names() {
    return {"generate", "replay", "needle", "adversarial", "kld"};
  }

  // In the order of Names; those that `gate` does not name are left out.
  std::vector<SuiteStep> Steps(const Gate& gate) {
    using Run = Result<EvaluationReport> (Evaluations::*)();
    static constexpr Run kRuns[] = {&Evaluations::Generate, &Evaluations::Replay,
                                    &Evaluations::Needle, &Evaluations::Adversarial,
                                    &Evaluations::Kld};
    std::vector<SuiteStep> steps;
    const std::vector<std::string> names = Names();
    for (size_t i = 0; i < names.size(); ++i) {
      SuiteStep step{.name = names[i]};
      step.skipped = WhyNot(names[i], gate);
      if (step.skipped.empty()) {
        const double begin = work_;
        work_ += Work(names[i]);
        step.run = [this, run = kRuns[i], name = names[i], begin, end = work_] {
          now_ = {name, begin, end};
          Result<EvaluationReport> report = (this->*run)();
          progress_.Clear();
          return report;
        };
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

 private:
  std::string WhyNot(const std::string& name, const Gate& gate) const {
    if (!gate.names(name)) return "the gate does not name it";
    if (name == "kld" && flags_.has_endpoint()) {
      return "endpoints do not tell the probabilities of all tokens";
    }
    if (name == "replay" && !material_.has_requests()) {
      return "--data holds no recorded requests";
    }
    return "";
  }

  // About how long an evaluation takes beside the others, in tokens that are read: for the time
  // that is left.
  double Work(const std::string& name) const {
    constexpr double kWritten = 4;  // tokens read in the time that one takes to be written
    const PromptOptions& prompts = flags_.generate.prompts;
    const double answer = kWritten * prompts.answer_tokens;
    double longest = 0, lengths = 0;
    for (const int64_t length : flags_.needle_lengths) {
      lengths += static_cast<double>(length);
      longest = std::max(longest, static_cast<double>(length));
    }
    if (name == "generate") {
      return 2 * (prompts.per_group * (2 * static_cast<double>(prompts.long_tokens) +
                                       3 * flags_.generate.generations * answer) +
                  kWritten * prompts.long_answers * flags_.generate.generations *
                      prompts.long_answer_tokens);
    }
    if (name == "replay") {
      const auto requests = static_cast<double>(std::count_if(
          material_.items.begin(), material_.items.end(),
          [](const CorpusItem& item) { return item.kind != CorpusItem::Kind::kText; }));
      return 2 * std::min(requests, static_cast<double>(flags_.replay_requests)) * answer;
    }
    // Single needles have a text for each depth, patterns half a text for each question.
    if (name == "needle") {
      return 2 * lengths * static_cast<double>(NeedleKinds().size() + flags_.needle_depths.size());
    }
    if (name == "adversarial") {
      return 2 * longest *
             (static_cast<double>(AdversarialKinds().size()) + 0.5 * flags_.adversarial_questions);
    }
    return 3 * static_cast<double>(flags_.windows * flags_.context);
  }

  // Of one evaluation, shown as part of the whole.
  ProgressSink Progress() {
    return [this, show = progress_.sink()](size_t done, size_t total, const std::string&) {
      const double share =
          static_cast<double>(done) / static_cast<double>(std::max<size_t>(total, 1));
      return show(static_cast<size_t>(now_.begin + share * (now_.end - now_.begin)),
                  static_cast<size_t>(work_), now_.name);
    };
  }

  Result<std::unique_ptr<TextEmbedder>> Embedder() {
    TQ_ASSIGN_OR_RETURN(const std::string folder, flags_.generate.EmbeddingsFolder());
    return TextEmbedder::Load(folder, pool_);
  }

  Result<EvaluationReport> Generate() {
    TQ_ASSIGN_OR_RETURN(GenerationsOptions options,
                        flags_.generate.Options(responders_.baseline(), material_.items,
                                                material_.text, flags_.data.seed));
    TQ_ASSIGN_OR_RETURN(options.redact, MakeRedact(flags_.data));
    options.progress = Progress();
    TQ_ASSIGN_OR_RETURN(const std::unique_ptr<TextEmbedder> embedder, Embedder());
    TQ_ASSIGN_OR_RETURN(const GenerationsResult result,
                        RunGenerations(responders_.baseline(), *responders_.candidates().front(),
                                       *embedder, options));
    return EvaluationReport{GenerationsJson(result), GenerationsSection(result)};
  }

  Result<EvaluationReport> Replay() {
    ReplayOptions options;
    for (const CorpusItem& item : material_.items) {
      if (options.requests.size() == flags_.replay_requests) break;
      if (item.kind != CorpusItem::Kind::kText) options.requests.push_back(item);
    }
    options.temperature = 0;
    options.max_tokens = flags_.generate.prompts.answer_tokens;
    options.seed = flags_.data.seed;
    options.cancel = &InterruptFlag();
    options.progress = Progress();
    TQ_ASSIGN_OR_RETURN(options.redact, MakeRedact(flags_.data));
    TQ_ASSIGN_OR_RETURN(const std::unique_ptr<TextEmbedder> embedder, Embedder());
    options.similarity = [&](const std::string& a, const std::string& b) {
      return embedder->Similarity(a, b);
    };
    options.similarity_name = "cosine of embeddings";
    TQ_ASSIGN_OR_RETURN(const ReplayResult result,
                        RunReplay(responders_.baseline(), responders_.candidates(), options));
    return EvaluationReport{ReplayJson(result), ReplaySection(result)};
  }

  Result<EvaluationReport> Needle() {
    NeedleOptions options;
    options.lengths = flags_.needle_lengths;
    options.length_flag = "";
    options.depths = flags_.needle_depths;
    options.seed = flags_.data.seed;
    options.text_name = material_.text.first;
    options.text = material_.text.second;
    TQ_ASSIGN_OR_RETURN(options.run, flags_.RunOptions());
    options.run.progress = Progress();
    TQ_ASSIGN_OR_RETURN(const NeedleResult result,
                        RunNeedle(responders_.baseline(), responders_.candidates(), options));
    return EvaluationReport{NeedleJson(result), NeedleSection(result)};
  }

  Result<EvaluationReport> Adversarial() {
    AdversarialOptions options;
    options.length = flags_.needle_lengths.back();
    options.length_flag = "";
    options.questions = flags_.adversarial_questions;
    options.seed = flags_.data.seed;
    options.text_name = material_.text.first;
    options.text = material_.text.second;
    TQ_ASSIGN_OR_RETURN(options.run, flags_.RunOptions());
    options.level = DefaultLevel(options.run.form);
    options.run.progress = Progress();
    TQ_ASSIGN_OR_RETURN(const AdversarialResult result,
                        RunAdversarial(responders_.baseline(), responders_.candidates(), options));
    return EvaluationReport{AdversarialJson(result), AdversarialSection(result)};
  }

  Result<EvaluationReport> Kld() {
    const LoadedModel& loaded = *responders_.loaded();
    TQ_ASSIGN_OR_RETURN(const CorpusEncoder encoder, CorpusEncoder::Create(*loaded.tokenizer));
    TQ_ASSIGN_OR_RETURN(Windows windows, PackWindows(encoder, material_.items, flags_.context,
                                                     flags_.windows * flags_.context,
                                                     flags_.data.seed, WindowsUse::kEvaluation));
    KldOptions options;
    TQ_ASSIGN_OR_RETURN(KvChoice plain, UniformKv(loaded.ForKv(), "f16", flags_.kv));
    TQ_ASSIGN_OR_RETURN(KvChoice floor, UniformKv(loaded.ForKv(), "k8v8", flags_.kv));
    TQ_ASSIGN_OR_RETURN(KvChoice choice, ChooseKv(loaded.ForKv(), flags_.kv, flags_.ContextLen()));
    options.reference = {plain.name, loaded.model.get(), std::move(plain.config)};
    options.floor = {floor.name, loaded.model.get(), std::move(floor.config)};
    options.candidates = {{choice.name, loaded.model.get(), std::move(choice.config)}};
    options.calibrated_on = {choice.calibrated_on};
    const std::string name = flags_.data.data.empty() ? material_.text.first : "--data";
    options.texts = {{name, std::move(windows.windows)}};
    options.measure.pool = loaded.pool.get();
    options.measure.progress = Progress();
    options.measure.cancel = &InterruptFlag();
    TQ_ASSIGN_OR_RETURN(const KldResult result, RunKld(options));
    const KldRow& row = result.rows.front();
    if (const std::string seen = SeenWords(row.seen); !seen.empty()) {
      PrintNote(flags_.output, row.name + ": " + seen);
    }
    return EvaluationReport{KldJson(result), KldSection(result)};
  }

  const Flags& flags_;
  const Material& material_;
  TaskResponders& responders_;
  ThreadPool pool_{flags_.model.threads};
  struct Part {
    std::string name;
    double begin = 0, end = 0;  // of work_
  };
  double work_ = 0;  // of all steps
  Part now_;
  ProgressBar progress_{flags_.output.quiet, /*time_left=*/true};
};

Result<Gate> ReadGate(const Flags& flags) {
  if (flags.gate.empty()) {
    return ParseGate(std::string(DefaultGateText()), "the default gate", Evaluations::Names());
  }
  TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.gate));
  return ParseGate(text, flags.gate, Evaluations::Names());
}

Result<int> Run(Flags flags) {
  if (flags.print_gate) {
    PrintOut(DefaultGateText());
    return kDone;
  }
  if (flags.quick) flags.MakeQuick();
  TQ_RETURN_IF_ERROR(flags.Validate());
  TQ_ASSIGN_OR_RETURN(const Gate gate, ReadGate(flags));
  if (gate.names("generate") || gate.names("replay")) {
    TQ_RETURN_IF_ERROR(flags.generate.Validate());
  }
  if (!flags.junit.empty()) TQ_RETURN_IF_ERROR(CheckWritable(flags.junit));
  if (flags.context < 256 || flags.windows < 1) {
    return InvalidArgument("--context ", flags.context, " --windows ", flags.windows,
                           ": expected 256 tokens or more and 1 window or more");
  }
  Material material;
  TQ_ASSIGN_OR_RETURN(Corpus corpus, flags.data.Read(flags.context, flags.output));
  TQ_ASSIGN_OR_RETURN(material.text, ReadLongText(flags, flags.ContextLen()));
  material.items = flags.data.ItemsOf(std::move(corpus));
  TQ_ASSIGN_OR_RETURN(TaskResponders responders, TaskResponders::Open(flags, flags.ContextLen()));
  if (responders.candidates().size() != 1) {
    return InvalidArgument("--kv names ", responders.candidates().size(),
                           " caches; tq eval suite judges one");
  }
  const std::string title = fmt::format(
      "{}{} beside {}",
      responders.loaded() == nullptr ? std::string()
                                     : responders.loaded()->model->arch().model_name + ": ",
      responders.candidates().front()->name(), responders.baseline().name());
  Evaluations evaluations(flags, material, responders);
  TQ_ASSIGN_OR_RETURN(const SuiteResult result, RunSuite(title, gate, evaluations.Steps(gate)));
  if (!flags.junit.empty()) TQ_RETURN_IF_ERROR(WriteFileAtomic(flags.junit, SuiteJUnit(result)));
  const std::string command =
      "tq eval suite" + flags.CommandLine() + (flags.gate.empty() ? "" : " --gate " + flags.gate) +
      (flags.quick ? " --quick"
                   : flags.generate.CommandLine() +
                         fmt::format(" --context {} --windows {}", flags.context, flags.windows));
  std::string text = SuiteText(result);
  if (result.count.failed > 0 && flags.candidate.url.empty()) {
    text += "Next, for the layers and heads that cost the most:\n  tq eval blame" +
            flags.LocalCommandLine() + " " + flags.data.CommandLine(DataFlags::ShownIn::kTerminal) +
            // Windows as here, but two of them: of one, little is clear beyond chance.
            fmt::format(" --cut packed --context {} --windows {}\n", flags.context,
                        std::max(flags.windows, 2));
  }
  TQ_RETURN_IF_ERROR(PrintTask(flags, responders, command,
                               {title, SuiteJson(result), SuiteSection(result), std::move(text)}));
  // A run that checked nothing is no proof of anything.
  return result.count.failed == 0 && result.count.passed > 0 ? kDone : kCheckFailed;
}

}  // namespace

Command AddEvalSuite(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "suite", "All evaluations as a regression test: one verdict, one report",
                 "tq eval suite --kv k4v4 --quick --report suite.html --junit suite.xml");
  auto flags = std::make_shared<Flags>();
  flags->data.max_tokens = 1 << 17;
  flags->Add(command);
  flags->generate.Add(command);
  command->add_option("--gate", flags->gate, "The bounds (default: those of --print-gate)")
      ->type_name("FILE");
  command->add_flag("--print-gate", flags->print_gate, "Print the default gate and end");
  command->add_option("--junit", flags->junit, "Write a JUnit file there, for CI systems")
      ->type_name("FILE");
  command->add_flag("--quick", flags->quick, "Fewer and shorter of everything: a first look");
  command->add_option("--context", flags->context, "Tokens of a window of kld")
      ->capture_default_str();
  command->add_option("--windows", flags->windows, "Windows of kld")->capture_default_str();
  return {"suite", [flags] { return Run(*flags); }};
}

}  // namespace tq::cli
