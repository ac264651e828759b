#include "cli/eval/eval_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "cli/eval/text_windows.h"
#include "runtime/evaluate/input_file.h"
#include "runtime/evaluate/section.h"
#include "turboquant/base/file.h"
#include "turboquant/base/isa.h"

namespace tq::cli {
namespace {

constexpr int64_t kMostContext = 1 << 24;

// The same text must be the same tokens to both models, or nothing can be compared.
Status CheckSameTokens(const LoadedModel& a, const LoadedModel& b) {
  const std::string text =
      "The same text: 3.14159, naïve \"quotes\" und\n\n  so weiter <|im_end|>.";
  if (a.tokenizer->Encode(text) == b.tokenizer->Encode(text)) return OkStatus();
  return InvalidArgument("--model-baseline ", b.path, " and ", a.path,
                         " cut the same text into different tokens: only models with one tokenizer "
                         "can be compared");
}

}  // namespace

void EvalFlags::Add(CLI::App* app) {
  model.Add(app);
  kv.Add(app);
  kv.AddVSkip(app);
  data.Add(app);
  data.AddPart(app);
  app->add_option("--context", context, "Tokens of a window: the context that is served")
      ->type_name("N");
  app->add_option("--windows", windows, "Windows: of each text, or as many tokens packed")
      ->type_name("N");
  app->add_option("--cut", cut,
                  "Where windows lie: packed (default with --data, --part and --redact: requests "
                  "and pieces of texts), spread over each text (default without), or llama: as "
                  "llama-perplexity cuts texts, one after the other, second halves scored")
      ->check(CLI::IsMember({"packed", "spread", "llama"}));
  app->add_option("--score-from", score_from,
                  "First position of a window that counts (default: 0, with --cut llama the half)")
      ->type_name("N");
  app->add_option("--report", report, "Write a self-contained HTML report there")
      ->type_name("FILE");
  output.Add(app);
}

void EvalFlags::AddBaseline(CLI::App* app) {
  app->add_option("--model-baseline", model_baseline,
                  "Compare with the plain run of this model, e.g. of other weights")
      ->type_name("FILE");
}

Status EvalFlags::Validate() const {
  if (context < 2 || context > kMostContext) {
    return InvalidArgument("--context ", context, " is outside 2..", kMostContext);
  }
  if (windows < 1 || windows > 1000000) {
    return InvalidArgument("--windows ", windows, " is outside 1..1000000");
  }
  if (score_from && (*score_from < 0 || *score_from > context - 2)) {
    return InvalidArgument("--score-from ", *score_from, " is outside 0..", context - 2,
                           ": windows have ", context, " tokens");
  }
  for (const std::string& name : SplitList(kv.kv, ',')) {
    if (name.empty()) {
      return InvalidArgument("--kv '", kv.kv, "' has an empty entry; write k8v4,k4v4");
    }
    TQ_RETURN_IF_ERROR(CheckKvName(name));
  }
  for (const std::string& v_skip : SplitList(kv.v_skip, ',')) {
    TQ_RETURN_IF_ERROR(ParseVSkip(v_skip).status());
  }
  if (!report.empty()) TQ_RETURN_IF_ERROR(CheckWritable(report));
  if (std::string_view(Cut()) != "packed") {
    for (const std::string& path : data.data) {
      if (IsDirectory(path)) {
        return InvalidArgument("--cut ", Cut(), " cuts single texts, and '", path,
                               "' is a folder; leave --cut out, or name its files");
      }
    }
    if (data.part != "all" || data.redacts()) {
      return InvalidArgument("--cut ", Cut(), " reads whole texts as they are: leave out --part, ",
                             "--redact and --redact-file, or --cut");
    }
  }
  TQ_RETURN_IF_ERROR(data.Validate());
  return model.Validate();
}

const char* EvalFlags::Cut() const {
  if (!cut.empty()) return cut.c_str();
  return data.data.empty() && data.part == "all" && !data.redacts() ? "spread" : "packed";
}

std::string EvalFlags::CommandLine(const std::string& name) const {
  std::string out = "tq eval " + name;
  if (!model.model.empty()) out += " --model " + ShellWord(model.model);
  if (!model_baseline.empty()) out += " --model-baseline " + ShellWord(model_baseline);
  out += " " + kv.CommandLine();
  if (std::string_view(Cut()) == "packed") {
    out += " " + data.CommandLine();
  } else {
    for (const std::string& path : data.data) out += " --data " + ShellWord(path);
  }
  out += fmt::format(" --context {} --windows {} --cut {}", context, windows, Cut());
  if (score_from) out += fmt::format(" --score-from {}", *score_from);
  return out;
}

Result<EvalInput> EvalInput::Load(const EvalFlags& flags) {
  TQ_RETURN_IF_ERROR(flags.Validate());
  EvalInput input;
  input.flags_ = flags;
  TQ_ASSIGN_OR_RETURN(input.loaded_, LoadModel(flags.model, flags.output, flags.context));
  if (!flags.model_baseline.empty()) {
    ModelFlags baseline = flags.model;
    baseline.model = flags.model_baseline;
    TQ_ASSIGN_OR_RETURN(input.baseline_, LoadModel(baseline, flags.output, flags.context));
    TQ_RETURN_IF_ERROR(CheckSameTokens(input.loaded_, *input.baseline_));
  }
  TQ_RETURN_IF_ERROR(
      ContextLen(flags.context, input.model().arch().context_len, flags.output).status());
  input.kv_model_ = input.loaded_.ForKv();
  const bool packed = std::string_view(flags.Cut()) == "packed";
  TQ_RETURN_IF_ERROR(packed ? input.PackTexts() : input.CutTexts());
  return input;
}

Status EvalInput::CutTexts() {
  std::vector<std::string> paths = flags_.data.data;
  if (paths.empty()) {
    TQ_ASSIGN_OR_RETURN(paths.emplace_back(), DefaultText());
  }
  const WindowCut cut =
      std::string_view(flags_.Cut()) == "llama" ? WindowCut::kLlama : WindowCut::kSpread;
  for (const std::string& path : paths) {
    TQ_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path));
    TQ_ASSIGN_OR_RETURN(
        EvalText windows,
        CutWindows(*loaded_.tokenizer, std::filesystem::path(path).filename().string(), text, cut,
                   flags_.windows, flags_.context));
    texts_.push_back(std::move(windows));
  }
  return OkStatus();
}

Status EvalInput::PackTexts() {
  TQ_ASSIGN_OR_RETURN(Corpus corpus, flags_.data.Read(flags_.context, flags_.output));
  CorpusReport report = corpus.report;
  TQ_ASSIGN_OR_RETURN(const CorpusEncoder encoder, CorpusEncoder::Create(*loaded_.tokenizer));
  TQ_ASSIGN_OR_RETURN(Windows packed, PackWindows(encoder, flags_.data.ItemsOf(std::move(corpus)),
                                                  flags_.context, flags_.context * flags_.windows,
                                                  flags_.data.seed, WindowsUse::kEvaluation));
  const int64_t least = flags_.score_from.value_or(0) + 2;
  const auto is_short = [&](const std::vector<TokenId>& w) {
    return static_cast<int64_t>(w.size()) < least;
  };
  if (const size_t left_out = std::erase_if(packed.windows, is_short); left_out > 0) {
    PrintNote(flags_.output, fmt::format("data: left out, for --score-from lies behind the end: {}",
                                         FormatCount(static_cast<int64_t>(left_out), "window")));
  }
  if (packed.windows.empty()) {
    return InvalidArgument("--score-from ", *flags_.score_from, ": no window is that long");
  }
  texts_.push_back({"data", std::move(packed.windows)});
  packed_.emplace(std::move(report), std::move(packed.report));
  return OkStatus();
}

Result<Stream> EvalInput::Reference() const {
  const LoadedModel& from = baseline_ ? *baseline_ : loaded_;
  TQ_ASSIGN_OR_RETURN(KvChoice plain, UniformKv(from.ForKv(), "f16", flags_.kv));
  return Stream{plain.name, from.model.get(), std::move(plain.config)};
}

Result<Stream> EvalInput::Floor() const {
  const LoadedModel& from = baseline_ ? *baseline_ : loaded_;
  TQ_ASSIGN_OR_RETURN(KvChoice floor, UniformKv(from.ForKv(), "k8v8", flags_.kv));
  return Stream{floor.name, from.model.get(), std::move(floor.config)};
}

Result<KvChoice> EvalInput::Choose(const std::string& kv) {
  return Choose(kv, flags_.kv.v_skip);
}

Result<KvChoice> EvalInput::Choose(const std::string& kv, const std::string& v_skip) {
  KvFlags one = flags_.kv;
  one.kv = kv;
  one.v_skip = v_skip;
  TQ_ASSIGN_OR_RETURN(KvChoice choice, ChooseKv(kv_model_, one, flags_.context));
  for (const std::string& note : choice.notes) {
    // These commands measure what the note about keys warns of.
    if (note.find("tq compare") != std::string::npos) continue;
    if (std::find(said_.begin(), said_.end(), note) != said_.end()) continue;
    said_.push_back(note);
    PrintNote(flags_.output, note);
  }
  return choice;
}

Result<std::vector<KvChoice>> EvalInput::ChooseAll() {
  std::vector<KvChoice> choices;
  for (const std::string& name : SplitList(flags_.kv.kv, ',')) {
    for (const std::string& v_skip : SplitList(flags_.kv.v_skip, ',')) {
      TQ_ASSIGN_OR_RETURN(KvChoice choice, Choose(name, v_skip));
      if (std::any_of(choices.begin(), choices.end(),
                      [&](const KvChoice& c) { return c.name == choice.name; })) {
        return InvalidArgument("--kv and --v-skip name ", choice.name, " twice");
      }
      choices.push_back(std::move(choice));
    }
  }
  return choices;
}

DivergenceOptions EvalInput::Measure(ProgressBar* progress) const {
  DivergenceOptions options;
  const bool llama = std::string_view(flags_.Cut()) == "llama";
  options.first_scored = flags_.score_from.value_or(llama ? flags_.context / 2 : 0);
  options.score_last = !llama;
  options.pool = loaded_.pool.get();
  options.progress = progress->sink();
  options.cancel = &InterruptFlag();
  return options;
}

Status EvalInput::WriteReport(const std::string& title, const std::string& section,
                              const std::string& command) const {
  if (flags_.report.empty()) return OkStatus();
  const std::string sections[] = {
      section, SectionHead("Where the numbers come from") + ListCard(Provenance(command))};
  return WriteFileAtomic(flags_.report,
                         SectionsPage(title, loaded_.model->arch().model_name, sections));
}

Result<int> EvalInput::Print(nlohmann::ordered_json json, const std::string& text, int code) const {
  if (flags_.output.json) {
    json["isa"] = CurrentIsa();
    json["device"] = "cpu";
    if (packed_) {
      json["data"] = CorpusJson(packed_->first);
      json["windows_used"] = WindowsJson(packed_->second);
    }
    json["threads"] = loaded_.pool->num_threads();
    PrintOut(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    return code;
  }
  PrintOut(text);
  if (!flags_.report.empty()) PrintOut(fmt::format("\nReport: {}\n", flags_.report));
  return code;
}

std::vector<std::pair<std::string, std::string>> EvalInput::Provenance(
    const std::string& command) const {
  std::vector<std::pair<std::string, std::string>> out;
  const auto file = [](const LoadedModel& m) {
    return fmt::format("{}, {}, {}", m.model->arch().model_name,
                       std::filesystem::path(m.path).filename().string(), m.model->weights().types);
  };
  out.push_back({"Model", file(loaded_)});
  if (baseline_) out.push_back({"Baseline", file(*baseline_)});
  out.push_back({"Tokenizer", loaded_.tokenizer->Describe()});
  for (const EvalText& t : texts_) {
    out.push_back(
        {"Text", fmt::format("{}: {} of up to {} tokens", t.name,
                             FormatCount(static_cast<int64_t>(t.windows.size()), "window"),
                             FormatCount(flags_.context))});
  }
  if (packed_) {
    out.push_back({"Data", CorpusText(packed_->first)});
    out.push_back({"Windows", WindowsText(packed_->second)});
  }
  out.push_back({"Machine", fmt::format("{}, {} threads, {}", MachineName(),
                                        loaded_.pool->num_threads(), CurrentIsa())});
  out.push_back({"Version", std::string("tq ") + Version()});
  out.push_back({"Command", command});
  return out;
}

}  // namespace tq::cli
