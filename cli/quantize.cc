// tq quantize: weights to INT8 or INT4, as a GGUF file.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/data_flags.h"
#include "cli/kv_choice.h"
#include "cli/loaded_model.h"
#include "cli/table.h"
#include "runtime/evaluate/section.h"
#include "runtime/quantize/quantize_result.h"
#include "runtime/quantize/write_quantized.h"
#include "turboquant/base/file.h"
#include "turboquant/base/isa.h"

namespace tq::cli {
namespace {

using Json = nlohmann::ordered_json;

struct QuantizeFlags {
  std::string model, to = "int4", embeddings = "auto", out, report;
  std::optional<double> budget, max_gib;
  bool requantize = false;
  KvFlags kv;
  DataFlags data;
  OutputFlags output;
  int64_t context = 2048, calibration_tokens = 16384, eval_tokens = 8192;
  int64_t feedback_columns = 0;
  int threads = 0;

  Status Validate() const;
  std::string CommandLine() const;
};

Status QuantizeFlags::Validate() const {
  if (budget && max_gib)
    return InvalidArgument("--budget and --max-gib are two words for one limit");
  if (budget && !(*budget > 0 && *budget <= 32)) {
    return InvalidArgument("--budget ", *budget, " is outside 0..32 bits per weight");
  }
  if (feedback_columns < 0) {
    return InvalidArgument("--feedback-columns ", feedback_columns, " is below 0");
  }
  if (max_gib && !(*max_gib > 0))
    return InvalidArgument("--max-gib ", *max_gib, " must be above 0");
  if (context < kMinWindow || context > 1 << 20) {
    return InvalidArgument("--context ", context, " is outside ", kMinWindow, "..", 1 << 20);
  }
  if (calibration_tokens < kMinWindow) {
    return InvalidArgument("--calibration-tokens ", calibration_tokens, " is below ", kMinWindow);
  }
  if (eval_tokens < 0) return InvalidArgument("--eval-tokens ", eval_tokens, " is below 0");
  if (data.data.empty() && (budget || max_gib)) {
    return InvalidArgument(
        "a budget is spent by what measurements on a text say; name one with --data FILE");
  }
  std::error_code error;
  if (std::filesystem::equivalent(model, out, error)) {
    return InvalidArgument("--out ", out, " is the model itself; name another file");
  }
  TQ_RETURN_IF_ERROR(CheckThreads(threads));
  TQ_RETURN_IF_ERROR(CheckKvName(kv.kv));
  TQ_RETURN_IF_ERROR(kv.ValidateWindow());
  TQ_RETURN_IF_ERROR(data.Validate());
  if (!report.empty()) TQ_RETURN_IF_ERROR(CheckWritable(report));
  return CheckWritable(out);
}

std::string QuantizeFlags::CommandLine() const {
  std::string line = fmt::format("tq quantize {} --to {}", ShellWord(model), to);
  if (embeddings != "auto") line += " --embeddings " + embeddings;
  if (budget) line += fmt::format(" --budget {:g}", *budget);
  if (max_gib) line += fmt::format(" --max-gib {:g}", *max_gib);
  if (requantize) line += " --requantize";
  if (!data.data.empty()) {
    line += fmt::format(
        " {} --context {} --calibration-tokens {} --eval-tokens {} --feedback-columns {} {}",
        data.CommandLine(), context, calibration_tokens, eval_tokens, feedback_columns,
        kv.CommandLine());
  }
  if (threads > 0) line += fmt::format(" --threads {}", threads);
  return line + " --out " + ShellWord(out);
}

// The texts of both parts as tokens.
struct Texts {
  std::vector<std::vector<TokenId>> calibration, held_out;
  Json json;
  std::string corpus_text;  // for a person
  std::string hash;         // of what calibrates
};

Result<Texts> ReadTexts(const QuantizeFlags& flags, const Tokenizer& tokenizer) {
  Texts texts;
  TQ_ASSIGN_OR_RETURN(const Corpus corpus, flags.data.Read(flags.context, flags.output));
  TQ_RETURN_IF_ERROR(
      CheckHasPart(corpus, "calibration", "weights are quantized by what they read"));
  TQ_ASSIGN_OR_RETURN(const CorpusEncoder encoder, CorpusEncoder::Create(tokenizer));
  const uint64_t seed = flags.data.seed;
  TQ_ASSIGN_OR_RETURN(Windows calibration, PackWindows(encoder, corpus.calibration, flags.context,
                                                       flags.calibration_tokens, seed));
  texts.calibration = std::move(calibration.windows);
  texts.json["corpus"] = CorpusJson(corpus.report);
  texts.json["calibration"] = WindowsJson(calibration.report);
  if (flags.eval_tokens > 0 && !corpus.held_out.empty()) {
    TQ_ASSIGN_OR_RETURN(Windows held_out,
                        PackWindows(encoder, corpus.held_out, flags.context, flags.eval_tokens,
                                    seed, WindowsUse::kEvaluation));
    texts.held_out = std::move(held_out.windows);
    texts.json["held_out"] = WindowsJson(held_out.report);
  }
  texts.corpus_text = CorpusText(corpus.report);
  texts.hash = fmt::format("{:016x}", corpus.report.calibration_hash);
  return texts;
}

size_t BudgetBytes(const QuantizeFlags& flags, const QuantizeTarget& target,
                   const WeightPlan& plan) {
  if (flags.max_gib) return static_cast<size_t>(*flags.max_gib * (1 << 30));
  const double bits = flags.budget.value_or(target.default_bits);
  return static_cast<size_t>(bits * static_cast<double>(plan.num_weights()) / 8);
}

// Calibration and allocation on a loaded model.
Result<InputStatistics> Calibrate(const QuantizeFlags& flags, const QuantizeTarget& target,
                                  LoadedModel& source, const Texts& texts, ProgressBar& progress,
                                  QuantizeResult* result) {
  TQ_ASSIGN_OR_RETURN(InputStatistics statistics,
                      InputStatistics::Collect(*source.model, texts.calibration,
                                               {.max_moment_columns = flags.feedback_columns,
                                                .progress = progress.sink()},
                                               *source.pool));
  result->calibration_tokens = statistics.tokens();
  result->budget_bytes = BudgetBytes(flags, target, result->plan);
  if (result->budget_bytes == 0) return statistics;
  SensitivityOptions options;
  options.choices = target.choices;
  options.outer_is_fixed = target.outer_is_fixed;
  options.progress = progress.sink();
  TQ_ASSIGN_OR_RETURN(result->sites, MeasureSites(*source.model, result->plan, statistics,
                                                  texts.calibration, options, *source.pool));
  TQ_ASSIGN_OR_RETURN(result->predicted_kld,
                      AllocateTypes(result->sites, result->budget_bytes, &result->plan));
  return statistics;
}

// Weights alone, cache alone, both, side by side with the source.
Result<KldResult> MeasureQuality(const QuantizeFlags& flags, const LoadedModel& source,
                                 const Texts& texts, ProgressBar& progress) {
  ModelFlags quantized_flags;
  quantized_flags.model = flags.out;
  quantized_flags.threads = flags.threads;
  TQ_ASSIGN_OR_RETURN(const LoadedModel quantized, LoadModel(quantized_flags, flags.output));
  const KvModel kv = source.ForKv();
  TQ_ASSIGN_OR_RETURN(const KvChoice plain, UniformKv(kv, "f16", flags.kv));
  TQ_ASSIGN_OR_RETURN(const KvChoice floor, UniformKv(kv, "k8v8", flags.kv));
  TQ_ASSIGN_OR_RETURN(const KvChoice choice, ChooseKv(kv, flags.kv, flags.context));
  for (const std::string& note : choice.notes) PrintNote(flags.output, note);
  KldOptions options;
  options.reference = {"source, f16 cache", source.model.get(), plain.config};
  options.floor = {"k8v8 cache", source.model.get(), floor.config};
  options.candidates = {
      {"weights", quantized.model.get(), plain.config},
      {choice.name + " cache", source.model.get(), choice.config},
      {"weights and " + choice.name + " cache", quantized.model.get(), choice.config}};
  options.texts = {{"held-out", texts.held_out}};
  options.measure.pool = source.pool.get();
  options.measure.progress = progress.sink();
  options.measure.cancel = &InterruptFlag();
  return RunKld(options);
}

std::vector<std::pair<std::string, std::string>> Provenance(const QuantizeFlags& flags,
                                                            const GgufFile& file,
                                                            const QuantizeResult& result,
                                                            const Texts* texts) {
  std::string from;
  for (const TensorPlan& t : result.plan.tensors) {
    if (t.role != TensorRole::kMatrix) continue;
    from = GgmlTypeName(t.tensor->type);
    break;
  }
  std::vector<std::pair<std::string, std::string>> out = {
      {"version", Version()},
      {"target", result.target},
      {"source_type", from},
      {"source_name", file.GetString("general.name").ok() ? *file.GetString("general.name") : ""},
      {"types", TypeCounts(result.plan)},
      {"bits_per_weight", fmt::format("{:.4f}", result.plan.bits_per_weight())},
      {"embeddings", EmbeddingsText(result)},
      {"feedback", FeedbackText(result)},
      {"importance", texts == nullptr
                         ? std::string("none: all inputs count the same")
                         : fmt::format("mean squares of inputs over {} tokens, text {}",
                                       result.calibration_tokens, texts->hash)}};
  if (result.budget_bytes > 0) {
    out.emplace_back("allocation",
                     fmt::format("least sum of measured KL under {} bytes", result.budget_bytes));
  }
  if (flags.requantize) out.emplace_back("requantized", "from weights that were quantized already");
  return out;
}

std::string TextReport(const QuantizeFlags& flags, const QuantizeResult& r) {
  std::string out =
      fmt::format("{}: {} -> {} ({:.2f}x smaller), {:.3f} bits per weight\n\n", r.model_name,
                  FormatMiB(r.source_bytes), FormatMiB(r.file_bytes),
                  static_cast<double>(r.source_bytes) / static_cast<double>(r.file_bytes),
                  r.plan.bits_per_weight());
  TextTable kinds({"tensors", "types", "million\nweights", "MiB"});
  for (const KindSummary& k : SummarizeKinds(r.plan)) {
    kinds.Add({k.kind, k.types, fmt::format("{:.1f}", static_cast<double>(k.weights) / 1e6),
               fmt::format("{:.2f}", static_cast<double>(k.bytes) / (1 << 20))});
  }
  out += kinds.ToString();
  out += fmt::format("\nEmbeddings and head: {}. Rounding with feedback: {}.\n\n",
                     EmbeddingsText(r), FeedbackText(r));
  if (!r.quality) {
    out += WhyNotMeasured(r) + ".";
    out += flags.data.data.empty()
               ? " With a text of your own,\nerrors go where they harm least and "
                 "are reported.\n"
               : "\n";
  } else {
    TextTable quality({"against the source", "KL mean", "99 %", "same top", "ppl", "ppl ratio"});
    for (const KldRow& row : r.quality->rows) {
      const DivergenceSummary& a = row.total.all;
      quality.Add({row.name, fmt::format("{:.5f} \u00b1 {:.5f}", a.mean, row.total.all.mean_stderr),
                   fmt::format("{:.4f}", a.p99), fmt::format("{:.2f} %", 100 * a.same_top),
                   fmt::format("{:.4f}", a.ppl_q),
                   fmt::format("{:.5f} \u00b1 {:.5f}", a.ppl_ratio, a.ppl_ratio_stderr)});
    }
    out += quality.ToString();
    out += fmt::format("\nKL in nats over {} held-out tokens; perplexity of the source {:.4f}.\n",
                       FormatCount(r.quality->tokens), r.quality->floor.all.ppl_ref);
    if (!r.quality->informative) out += "Not informative: " + r.quality->note + "\n";
  }
  out += fmt::format("\nWritten: {}\n", r.out_path);
  return out;
}

Result<int> RunQuantize(const QuantizeFlags& flags) {
  TQ_ASSIGN_OR_RETURN(const QuantizeTarget target, QuantizeTargetOf(flags.to, flags.embeddings));
  TQ_RETURN_IF_ERROR(flags.Validate());
  QuantizeResult result;
  result.target = flags.to;
  result.embeddings_by_name = target.outer_is_fixed;
  result.out_path = flags.out;
  ProgressBar progress(flags.output.quiet);
  std::optional<LoadedModel> source;
  std::optional<Texts> texts;
  std::optional<InputStatistics> statistics;
  std::optional<GgufFile> opened;
  const GgufFile* file = nullptr;
  {
    // Refusals come before anything is loaded.
    TQ_ASSIGN_OR_RETURN(GgufFile checked, GgufFile::Open(flags.model));
    opened = std::move(checked);
    TQ_ASSIGN_OR_RETURN(result.plan, WeightPlan::Create(*opened, target, flags.requantize));
    TQ_ASSIGN_OR_RETURN(const Architecture arch, Architecture::FromGguf(*opened));
    result.model_name = arch.model_name;
    result.source_bytes = opened->file_bytes();
    file = &*opened;
  }
  if (!file->Has("tokenizer.ggml.model")) {
    PrintNote(flags.output, "the model has no tokenizer (tokenizer.json), nor will the file");
  }
  if (!flags.data.data.empty()) {
    ModelFlags model;
    model.model = flags.model;
    model.threads = flags.threads;
    TQ_ASSIGN_OR_RETURN(source, LoadModel(model, flags.output));
    TQ_ASSIGN_OR_RETURN(texts, ReadTexts(flags, *source->tokenizer));
    result.data = texts->json;
    file = &source->model->file();
    TQ_ASSIGN_OR_RETURN(result.plan, WeightPlan::Create(*file, target, flags.requantize));
    TQ_ASSIGN_OR_RETURN(statistics, Calibrate(flags, target, *source, *texts, progress, &result));
    result.feedback_columns = flags.feedback_columns;
    result.feedback_tensors = statistics->NumWithFeedback(result.plan);
    result.lost_feedback = statistics->NoteLostFeedback(&result.plan);
    if (result.lost_feedback > 0) {
      PrintNote(flags.output,
                fmt::format("{} matrices are rounded without feedback: --json says why",
                            result.lost_feedback));
    }
  }
  std::unique_ptr<ThreadPool> own_pool;
  if (!source) own_pool = std::make_unique<ThreadPool>(flags.threads);
  ThreadPool& pool = source ? *source->pool : *own_pool;
  TQ_ASSIGN_OR_RETURN(const QuantizedFile written,
                      WriteQuantized(*file, result.plan, statistics ? &*statistics : nullptr,
                                     Provenance(flags, *file, result, texts ? &*texts : nullptr),
                                     flags.out, pool, progress.sink()));
  progress.Clear();
  result.file_bytes = written.file_bytes;
  if (texts && !texts->held_out.empty()) {
    TQ_ASSIGN_OR_RETURN(result.quality, MeasureQuality(flags, *source, *texts, progress));
    progress.Clear();
  }

  // What took minutes is shown before a report that may fail.
  if (flags.output.json) {
    Json j = QuantizeJson(result);
    j["command"] = flags.CommandLine();
    j["isa"] = CurrentIsa();
    j["threads"] = pool.num_threads();
    PrintOut(j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } else {
    PrintOut(TextReport(flags, result));
  }
  if (!flags.report.empty()) {
    std::vector<std::pair<std::string, std::string>> list = {
        {"Command", flags.CommandLine()},
        {"Machine", MachineName()},
        {"Kernels", CurrentIsa()},
        {"Threads", std::to_string(pool.num_threads())},
        {"Version", Version()}};
    if (texts) list.emplace_back("Text", texts->corpus_text);
    const std::string sections[] = {QuantizeSection(result),
                                    SectionHead("Where the numbers come from") + ListCard(list)};
    TQ_RETURN_IF_ERROR(WriteFileAtomic(
        flags.report, SectionsPage("Weights of " + result.model_name,
                                   fmt::format("--to {}, {:.3f} bits per weight", flags.to,
                                               result.plan.bits_per_weight()),
                                   sections)));
    if (!flags.output.json) PrintOut(fmt::format("Report: {}\n", flags.report));
  }
  return kDone;
}

}  // namespace

Command AddQuantize(CLI::App& app) {
  CLI::App* command = AddCommand(app, "quantize",
                                 "Weights to INT8 or INT4, as a GGUF file that llama.cpp opens too",
                                 "tq quantize .cache/SmolLM2-135M-Instruct.Q4_1.gguf --requantize "
                                 "--to int8 --out build/int8.gguf");
  auto flags = std::make_shared<QuantizeFlags>();
  command->add_option("model", flags->model, "GGUF file or Hugging Face folder")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--to", flags->to,
                   "int8, int4, or a type: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, F16, BF16")
      ->capture_default_str();
  command
      ->add_option("--embeddings", flags->embeddings,
                   "Type of the token embeddings and the head; auto: Q6_K (Q8_0 where rows are no "
                   "multiple of 256), or that of --to if larger; with a budget what measurements "
                   "say")
      ->type_name("TYPE")
      ->capture_default_str();
  command->add_option("--out", flags->out, "The file to write")->required()->type_name("FILE");
  command
      ->add_option("--budget", flags->budget,
                   "Bits per weight over all tensors; sensitive ones get more (int4: 5)")
      ->type_name("BITS");
  command->add_option("--max-gib", flags->max_gib, "The same as bytes of all tensors, in GiB")
      ->type_name("GIB");
  command->add_flag("--requantize", flags->requantize,
                    "Take weights that are quantized already: both losses add up");
  flags->data.Add(command);
  command->add_option("--context", flags->context, "Tokens of a window of the text")
      ->capture_default_str();
  command
      ->add_option("--calibration-tokens", flags->calibration_tokens,
                   "Tokens whose inputs say which columns matter")
      ->capture_default_str();
  command
      ->add_option("--eval-tokens", flags->eval_tokens,
                   "Held-out tokens on which the result is measured; 0: none")
      ->capture_default_str();
  command
      ->add_option(
          "--feedback-columns", flags->feedback_columns,
          "Rounding with feedback (as GPTQ) in matrices of up to so many columns, 2048 say; "
          "0: none. It is slow, and was worse than none on the model we measured")
      ->capture_default_str();
  flags->kv.Add(command);
  command->add_option("--threads", flags->threads, "0: one per physical core")
      ->capture_default_str();
  command->add_option("--report", flags->report, "Write a self-contained HTML report there")
      ->type_name("FILE");
  flags->output.Add(command);
  return {"quantize", [flags] { return RunQuantize(*flags); }};
}

}  // namespace tq::cli
