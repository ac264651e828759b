// tq calibrate: which format for which layer and head, found on the user's own text; writes a
// profile.
#include "runtime/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/commands.h"
#include "cli/data_flags.h"
#include "cli/kv_choice.h"
#include "cli/loaded_model.h"
#include "runtime/calibrate/responses.h"
#include "runtime/evaluate/footprint.h"
#include "runtime/evaluate/section.h"
#include "runtime/model/model_profile.h"
#include "turboquant/base/file.h"
#include "turboquant/base/isa.h"
#include "turboquant/base/numeric.h"

namespace tq::cli {
namespace {

struct CalibrateFlags {
  ModelFlags model;
  OutputFlags output;
  DataFlags data;
  int64_t context = 2048;
  std::optional<double> target_kld, budget, max_gib;
  std::string base = "k3v2-anchor1", bits = "2,3,4,5,6,8", group_lens = "head", objective = "kld",
              granularity = "auto";
  int recent_len = 256, sink_len = 4;
  ResponseOptions answers;
  int64_t calibration_tokens = 100000;
  CalibrateOptions run;  // for its defaults
  std::string out, state, report;
  bool keep_state = false, uniform = false, write_into = false;

  const CLI::App* command = nullptr;

  void Add(CLI::App* app);
  Status Validate() const;
  // For reports.
  std::string CommandLine() const {
    return "tq calibrate" + GivenOptions(*command, DataFlags::kFlags) + " " + data.CommandLine();
  }
};

void CalibrateFlags::Add(CLI::App* app) {
  command = app;
  model.Add(app);
  data.Add(app);
  app->add_option("--context", context, "Tokens of a served sequence: calibrate at what is served")
      ->capture_default_str();
  app->add_option("--target-kld", target_kld,
                  "Mean KL on held-out text that the profile may have (default: 0.005)")
      ->type_name("NATS");
  app->add_option("--budget", budget,
                  "Bits per value of sealed blocks, everything counted: the least KL within it")
      ->type_name("BITS");
  app->add_option("--max-gib", max_gib,
                  "The same as the memory of one sequence of --context tokens")
      ->type_name("GIB");
  app->add_option("--base", base,
                  "A preset whose codes, groups and anchors all heads get; its bits are ignored")
      ->capture_default_str();
  app->add_flag("--uniform", uniform,
                "Give every head the format of --base; measure only what its centre and anchors "
                "need, and prove it");
  app->add_option("--bits", bits, "Widths that may be given; the first is the floor")
      ->capture_default_str();
  app->add_option("--group-lens", group_lens,
                  "Values that share a scale, tried at each width: head, 64, 32, 16")
      ->capture_default_str();
  app->add_option("--objective", objective,
                  "What is minimized: kld, or cosine (of attention outputs); both are reported")
      ->capture_default_str();
  app->add_option("--granularity", granularity,
                  "layer, head, or auto: what measures better end to end; pair, to compare with: "
                  "K and V of a layer alike")
      ->capture_default_str();
  app->add_option("--recent-len", recent_len, "Recent tokens kept at 8 bit, in blocks of 64")
      ->capture_default_str();
  app->add_option("--sink-len", sink_len, "First tokens kept at 8 bit, in blocks of 64")
      ->capture_default_str();
  app->add_option("--tokens", calibration_tokens, "Tokens of calibration text that are read")
      ->capture_default_str();
  app->add_option("--site-tokens", run.site_tokens,
                  "Tokens of each run that measures one layer or head")
      ->capture_default_str();
  app->add_option("--search-tokens", run.search_tokens,
                  "Tokens of each run that measures a whole allocation")
      ->capture_default_str();
  app->add_option("--held-out-tokens", run.held_out_tokens, "Tokens of the proof at the end")
      ->capture_default_str();
  app->add_option("--rounds", answers.rounds,
                  "Answers that the model gives to each request whose log has none")
      ->capture_default_str();
  app->add_option("--answer-tokens", answers.max_tokens, "Most tokens of such an answer")
      ->capture_default_str();
  app->add_option("--temperature", answers.temperature, "Of such answers")->capture_default_str();
  app->add_option("--out", out, "The profile (default: beside the model, where tq finds it)")
      ->type_name("FOLDER");
  app->add_flag("--write-into", write_into,
                "Put the profile into the model too: a folder's config.json, or a new GGUF file");
  app->add_option("--report", report, "Write a self-contained HTML report there")
      ->type_name("FILE");
  app->add_option("--state", state, "What was measured so far (default: FOLDER.state)")
      ->type_name("FILE");
  app->add_flag("--keep-state", keep_state,
                "Keep it when all is done, for another budget, target or --uniform");
  output.Add(app);
}

Result<std::vector<int>> ParseBits(const std::string& text) {
  std::vector<int> bits;
  for (const std::string& word : SplitList(text, ',')) {
    int n = 0;
    const auto r = std::from_chars(word.data(), word.data() + word.size(), n);
    if (r.ec != std::errc() || r.ptr != word.data() + word.size() || !DefaultCodec(n).ok() ||
        n == 16 || n < 2 || (!bits.empty() && n <= bits.back())) {
      return InvalidArgument("--bits '", text,
                             "': expected ascending widths of 2, 3, 4, 5, 6, 8, e.g. 2,3,4,8");
    }
    bits.push_back(n);
  }
  return bits;
}

Result<std::vector<int>> ParseGroupLens(const std::string& text) {
  std::vector<int> lens;
  for (const std::string& word : SplitList(text, ',')) {
    const int n = word == "head" ? kGroupHead
                  : word == "64" ? 64
                  : word == "32" ? 32
                  : word == "16" ? 16
                                 : -1;
    if (n < 0 || (lens.empty() ? n != kGroupHead
                               : n == kGroupHead || (lens.size() > 1 && n >= lens.back()))) {
      return InvalidArgument("--group-lens '", text,
                             "': expected head, then some of 64, 32, 16 in this order");
    }
    lens.push_back(n);
  }
  return lens;
}

Status CalibrateFlags::Validate() const {
  TQ_RETURN_IF_ERROR(data.Validate());
  TQ_RETURN_IF_ERROR(ParseBits(bits).status());
  TQ_RETURN_IF_ERROR(ParseGroupLens(group_lens).status());
  TQ_RETURN_IF_ERROR(ParsePreset(base).status().WithContext("--base"));
  if (ParsePreset(base)->k.is_float() || ParsePreset(base)->v.is_float()) {
    return InvalidArgument("--base ", base, " is not quantized; use k3v2, k3v2-anchor1, ",
                           "k3v2-trellis-anchor1, k4v4-group32");
  }
  if (objective != "kld" && objective != "cosine") {
    return InvalidArgument("--objective '", objective, "' is not kld or cosine");
  }
  if (granularity != "auto" && granularity != "layer" && granularity != "head" &&
      granularity != "pair") {
    return InvalidArgument("--granularity '", granularity, "' is not auto, layer, head or pair");
  }
  const auto positive = [](const char* flag, const std::optional<double>& v) -> Status {
    if (!v || (*v > 0 && *v < 1e6)) return OkStatus();
    return InvalidArgument(flag, " ", *v, ": expected a number above 0");
  };
  TQ_RETURN_IF_ERROR(positive("--target-kld", target_kld));
  TQ_RETURN_IF_ERROR(positive("--budget", budget));
  TQ_RETURN_IF_ERROR(positive("--max-gib", max_gib));
  if (uniform && (budget || max_gib)) {
    return InvalidArgument(
        "--uniform takes its bits from --base: leave --budget and --max-gib out");
  }
  if (context < 512) {
    return InvalidArgument("--context ", context,
                           ": expected 512 or more; below, a cache is "
                           "mostly recent window and there is nothing to calibrate");
  }
  for (const auto& [flag, value] : {std::pair("--tokens", calibration_tokens),
                                    {"--site-tokens", run.site_tokens},
                                    {"--search-tokens", run.search_tokens},
                                    {"--held-out-tokens", run.held_out_tokens}}) {
    if (value < 1) return InvalidArgument(flag, " ", value, ": expected 1 or more");
  }
  TQ_RETURN_IF_ERROR(CheckWindow(recent_len, sink_len));
  if (!(answers.temperature >= 0)) {
    return InvalidArgument("--temperature ", answers.temperature, ": expected 0 or more");
  }
  if (answers.rounds < 0 || answers.max_tokens < 1) {
    return InvalidArgument("--rounds ", answers.rounds, " --answer-tokens ", answers.max_tokens,
                           ": expected 0 or more, and 1 or more");
  }
  return report.empty() ? OkStatus() : CheckWritable(report);
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[16];
  std::strftime(text, sizeof(text), "%Y-%m-%d", &utc);
  return text;
}

// Everything that a measurement depends on; budget and target are not among it, and of the base the
// axes, not the bits.
uint64_t InputsHash(const CalibrateFlags& flags, const LoadedModel& loaded, uint64_t corpus,
                    uint64_t weights) {
  const std::string axes = flags.base.substr(std::min(flags.base.find('-'), flags.base.size()));
  constexpr int kWaysOfMeasuring = 2;  // one more when the same inputs would measure otherwise
  const std::string text =
      StrCat(kWaysOfMeasuring, " ", loaded.model->StructureHash(), " ", weights, " ", corpus, " ",
             flags.data.seed, " ", flags.data.held_out_share, " ", flags.context, " ", axes, " ",
             flags.bits, " ", flags.group_lens, " ", flags.recent_len, " ", flags.sink_len, " ",
             flags.calibration_tokens, " ", flags.run.site_tokens, " ", flags.run.search_tokens,
             " ", flags.answers.rounds, " ", flags.answers.max_tokens, " ",
             flags.answers.temperature, " ", CurrentIsa());
  return Hash64(text.data(), text.size(), 0);
}

// What became of one part of the data.
struct UsedText {
  nlohmann::ordered_json json;
  std::string text;
};

// The windows of one part of the data, with answers where the log has none.
Result<Windows> MakeWindows(const CalibrateFlags& flags, LoadedModel& loaded,
                            const std::vector<CorpusItem>& items, int64_t tokens, WindowsUse use,
                            Journal* journal, UsedText* used) {
  TQ_ASSIGN_OR_RETURN(const CorpusEncoder encoder, CorpusEncoder::Create(*loaded.tokenizer));
  ResponseOptions options = flags.answers;
  options.context_len = flags.context;
  options.seed = flags.data.seed;
  options.total_tokens = tokens;
  options.cancel = &InterruptFlag();
  ProgressBar progress(flags.output.quiet);
  options.progress = progress.sink();
  TQ_ASSIGN_OR_RETURN(const Responses responses, AddResponses(*loaded.model, *loaded.tokenizer,
                                                              encoder, items, options, journal));
  progress.Clear();
  TQ_ASSIGN_OR_RETURN(Windows windows, PackWindows(responses.sequences, flags.context, tokens,
                                                   flags.data.seed, use));
  used->json = WindowsJson(windows.report);
  used->json["answers"] = {{"recorded", responses.recorded},
                           {"generated", responses.generated},
                           {"tokens", responses.answer_tokens}};
  used->text = WindowsText(windows.report);
  if (responses.recorded + responses.generated > 0) {
    used->text += fmt::format("  answers: {} from the log, {} of the model with {}\n",
                              FormatCount(responses.recorded), FormatCount(responses.generated),
                              FormatCount(responses.answer_tokens, "token"));
  }
  return windows;
}

std::string WhatNext(const CalibrateFlags& flags, const std::string& out, bool beside,
                     bool passed) {
  const std::string model =
      flags.model.model.empty() ? "" : " --model " + ShellWord(flags.model.model);
  const std::string kv = beside ? "" : " --kv " + ShellWord(out);
  const std::string data = flags.data.CommandLine(DataFlags::ShownIn::kTerminal);
  std::string next = fmt::format(
      "\nWrote {}\n{}Next:\n  tq info {}\n  tq eval kld{}{} --context {} {} --part held-out\n"
      "  tq run{}{} --max-tokens 40 -p \"The sea is\"\n",
      out, beside ? "It lies beside the model: tq run, eval and plan find it by themselves.\n" : "",
      ShellWord(out), model, kv, flags.context, data, model, kv);
  if (!passed) {
    // Not on the held-out part: what is chosen by it proves nothing any more.
    next += fmt::format(
        "It did not pass; for the layers and heads that cost the most:\n"
        "  tq eval blame{}{} --context {} {} --part calibration\n",
        model, kv, flags.context, data);
  }
  return next;
}

Result<int> RunCalibrate(const CalibrateFlags& flags) {
  TQ_RETURN_IF_ERROR(flags.Validate());
  TQ_ASSIGN_OR_RETURN(const std::string model_path, flags.model.Path());
  const std::string beside = ProfileBeside(model_path);
  const std::string out = flags.out.empty() ? beside : flags.out;
  const std::string state = flags.state.empty() ? out + ".state" : flags.state;
  TQ_RETURN_IF_ERROR(CheckWritable(IsDirectory(out) ? out + "/profile.json" : out));
  TQ_RETURN_IF_ERROR(CheckWritable(state));
  if (flags.write_into) {
    TQ_RETURN_IF_ERROR(CheckProfileGoesInto(model_path).WithContext("--write-into"));
  }
  TQ_ASSIGN_OR_RETURN(Corpus corpus,
                      flags.data.Read(flags.context, flags.output, DataFlags::Notes::kLeave));
  for (const char* part : {"calibration", "held-out"}) {
    TQ_RETURN_IF_ERROR(
        CheckHasPart(corpus, part, "a profile is measured on one part and proved on the other"));
  }
  TQ_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(flags.model, flags.output, flags.context));
  TQ_RETURN_IF_ERROR(
      ContextLen(flags.context, loaded.model->arch().context_len, flags.output).status());
  PrintNote(flags.output, CorpusText(corpus.report));

  const uint64_t weights = WeightsHash(loaded.model->file());
  std::string note;
  TQ_ASSIGN_OR_RETURN(
      Journal journal,
      Journal::Open(state, InputsHash(flags, loaded, corpus.report.hash, weights), &note));
  if (!note.empty()) PrintNote(flags.output, note);

  UsedText used, used_held_out;
  TQ_ASSIGN_OR_RETURN(const Windows calibration,
                      MakeWindows(flags, loaded, corpus.calibration, flags.calibration_tokens,
                                  WindowsUse::kCalibration, &journal, &used));
  // Whole windows of the context that is served, and enough of them to tell their spread.
  const int64_t proof_tokens = std::max(
      flags.run.held_out_tokens, static_cast<int64_t>(kCalibrateLeastWindows) * flags.context);
  TQ_ASSIGN_OR_RETURN(const Windows held_out,
                      MakeWindows(flags, loaded, corpus.held_out, proof_tokens,
                                  WindowsUse::kEvaluation, &journal, &used_held_out));
  PrintNote(flags.output, "calibration " + used.text);
  PrintNote(flags.output, "held out " + used_held_out.text);

  CalibrateOptions options = flags.run;
  options.base = *ParsePreset(flags.base);
  options.bits = *ParseBits(flags.bits);
  options.group_lens = *ParseGroupLens(flags.group_lens);
  options.context_len = flags.context;
  options.recent_len = flags.recent_len;
  options.sink_len = flags.sink_len;
  options.budget_bits = flags.budget;
  if (flags.max_gib) options.max_cache_bytes = static_cast<size_t>(*flags.max_gib * 0x1p30);
  options.target_kld = flags.target_kld.value_or(options.target_kld);
  options.gate = flags.target_kld || !(flags.budget || flags.max_gib || flags.uniform);
  options.uniform = flags.uniform;
  options.objective = flags.objective == "kld" ? Objective::kKld : Objective::kCosine;
  if (flags.granularity != "auto") {
    options.granularity = flags.granularity == "layer"  ? Granularity::kLayer
                          : flags.granularity == "head" ? Granularity::kHead
                                                        : Granularity::kPair;
  }
  options.pool = loaded.pool.get();
  options.journal = &journal;
  ProgressBar progress(flags.output.quiet, /*time_left=*/true);
  options.progress = progress.sink();
  options.log = [&](LogLevel, const std::string& text) {
    progress.Clear();
    PrintNote(flags.output, text);
  };
  options.cancel = &InterruptFlag();
  const auto start = std::chrono::steady_clock::now();
  Result<CalibrateResult> calibrated =
      Calibrate(*loaded.model, calibration.windows, held_out.windows, options);
  progress.Clear();
  if (calibrated.status().code() == StatusCode::kCancelled) {
    return Cancelled(calibrated.status().message(), "; what was measured is in ", state,
                     ": the same command goes on from there");
  }
  TQ_ASSIGN_OR_RETURN(CalibrateResult result, std::move(calibrated));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  Profile& profile = result.profile;
  profile.model.weights_hash = weights;
  profile.calibration->corpus_hash = corpus.report.calibration_hash;
  profile.calibration->sequences = calibration.report.sequences;  // before they were packed
  profile.calibration->date = Today();
  profile.calibration->text = TextSketch(calibration.windows);
  CacheConfig config = loaded.model->MakeCacheConfig();
  TQ_RETURN_IF_ERROR(profile.Apply(loaded.model->StructureHash(), weights, &config, &note));
  for (const int64_t context : {int64_t{8192}, int64_t{131072}, flags.context}) {
    const double bits = 16.0 * static_cast<double>(CacheFootprint(config, context).total()) /
                        static_cast<double>(F16Footprint(config, context));
    const bool known = std::any_of(profile.bits_all_counted.begin(), profile.bits_all_counted.end(),
                                   [&](const auto& b) { return b.first == context; });
    if (!known) profile.bits_all_counted.emplace_back(context, bits);
  }
  TQ_RETURN_IF_ERROR(profile.Save(out));
  std::string into_path;
  if (flags.write_into) {
    ProgressBar writing(flags.output.quiet);
    TQ_ASSIGN_OR_RETURN(const WrittenProfile into,
                        WriteProfileInto(loaded.path, profile, "", writing.sink()));
    writing.Clear();
    for (const std::string& n : into.notes) PrintNote(flags.output, n);
    into_path = into.path;
  }
  if (!flags.keep_state) journal.Remove();

  if (!flags.report.empty()) {
    const std::string sections[] = {CalibrateSection(result),
                                    SectionHead("Where the numbers come from") +
                                        ListCard({{"model", loaded.model->arch().model_name},
                                                  {"weights", loaded.model->weights().types},
                                                  {"data", CorpusText(corpus.report)},
                                                  {"calibration", used.text},
                                                  {"held out", used_held_out.text},
                                                  {"machine", MachineName()},
                                                  {"kernels", CurrentIsa()},
                                                  {"program", Version()},
                                                  {"command", flags.CommandLine()}})};
    TQ_RETURN_IF_ERROR(WriteFileAtomic(
        flags.report,
        SectionsPage("Calibration of " + loaded.model->arch().model_name,
                     fmt::format("at {} tokens", FormatCount(flags.context)), sections)));
  }
  if (flags.output.json) {
    nlohmann::ordered_json j = CalibrateJson(result);
    j["profile"] = out;
    if (flags.write_into) j["written_into"] = into_path;
    j["data"] = CorpusJson(corpus.report);
    j["used"] = {{"calibration", used.json}, {"held_out", used_held_out.json}};
    j["seconds"] = seconds;
    j["threads"] = loaded.pool->num_threads();
    j["isa"] = CurrentIsa();
    j["peak_rss_bytes"] = PeakRssBytes();
    PrintOut(j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  } else {
    PrintOut(CalibrateText(result) + WhatNext(flags, out, out == beside, profile.quality->passed));
    if (flags.write_into) {
      PrintOut(fmt::format("Written into {}{}\n", into_path,
                           IsDirectory(model_path) ? "" : ", a copy of the model that carries it"));
    }
    if (!flags.report.empty()) PrintOut(fmt::format("Report: {}\n", flags.report));
  }
  return profile.quality->passed ? kDone : kCheckFailed;
}

}  // namespace

Command AddCalibrate(CLI::App& app) {
  CLI::App* command = AddCommand(
      app, "calibrate", "Find the format of each layer and head on your own text, as a profile",
      "tq calibrate --data requests.jsonl --context 4096 --target-kld 0.005");
  auto flags = std::make_shared<CalibrateFlags>();
  flags->Add(command);
  return {"calibrate", [flags] { return RunCalibrate(*flags); }};
}

}  // namespace tq::cli
