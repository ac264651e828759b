// tq eval kld: the next-token distributions of quantized caches against the plain one's.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/eval/eval.h"
#include "cli/eval/text_windows.h"
#include "cli/kv_choice.h"
#include "cli/loaded_model.h"
#include "cli/table.h"
#include "runtime/evaluate/kld_run.h"
#include "turboquant/base/file.h"

namespace tq::cli {
namespace {

struct KldFlags {
  ModelFlags model;
  KvFlags kv;
  OutputFlags output;
  std::vector<std::string> data;
  int64_t context = 2048;
  int windows = 4;
};

Result<std::vector<EvalText>> Texts(const KldFlags& flags, const Tokenizer& tokenizer) {
  std::vector<std::string> paths = flags.data;
  if (paths.empty()) {
    const std::string folder = DataFolder();
    paths.push_back((std::filesystem::path(folder.empty() ? ".cache" : folder) / "bible.txt"));
  }
  std::vector<EvalText> texts;
  for (const std::string& path : paths) {
    TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    TQ_ASSIGN_OR_RETURN(EvalText cut,
                        CutWindows(tokenizer, std::filesystem::path(path).filename().string(), text,
                                   WindowCut::kSpread, flags.windows, flags.context));
    texts.push_back(std::move(cut));
  }
  return texts;
}

std::string TextReport(const KldResult& r) {
  TextTable table({"cache", "bits per\nvalue", "KL mean", "KL 99 %", "same top", "ppl ratio"});
  for (const KldRow& row : r.rows) {
    const DivergenceSummary& s = row.total.all;
    table.Add({row.name, fmt::format("{:.3f}", row.bits_per_value),
               fmt::format("{:.5f} ± {:.5f}", s.mean, row.total.over_windows.stderr_of_mean()),
               fmt::format("{:.4f}", s.p99), fmt::format("{:.2f} %", 100 * s.same_top),
               fmt::format("{:.5f} ± {:.5f}", s.ppl_ratio, s.ppl_ratio_stderr)});
  }
  return table.ToString();
}

Result<int> RunEvalKld(const KldFlags& flags) {
  TQ_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(flags.model, flags.output, flags.context));
  const KvModel model = loaded.ForKv();
  KldOptions options;
  TQ_ASSIGN_OR_RETURN(KvChoice plain, UniformKv(model, "f16", flags.kv));
  TQ_ASSIGN_OR_RETURN(KvChoice floor, UniformKv(model, "k8v8", flags.kv));
  options.reference = {plain.name, loaded.model.get(), std::move(plain.config)};
  options.floor = {floor.name, loaded.model.get(), std::move(floor.config)};
  for (const std::string& name : SplitList(flags.kv.kv, ',')) {
    KvFlags one = flags.kv;
    one.kv = name;
    TQ_ASSIGN_OR_RETURN(KvChoice choice, ChooseKv(model, one, flags.context));
    for (const std::string& note : choice.notes) PrintNote(flags.output, note);
    options.candidates.push_back({choice.name, loaded.model.get(), std::move(choice.config)});
  }
  TQ_ASSIGN_OR_RETURN(options.texts, Texts(flags, *loaded.tokenizer));
  options.measure.pool = loaded.pool.get();
  options.measure.cancel = &InterruptFlag();
  ProgressBar progress(flags.output.quiet);
  options.measure.progress = progress.sink();
  TQ_ASSIGN_OR_RETURN(const KldResult result, RunKld(options));
  progress.Clear();
  PrintOut(flags.output.json ? KldJson(result).dump(2) + "\n" : TextReport(result));
  return kDone;
}

}  // namespace

Command AddEvalKld(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "kld", "KL divergence and perplexity of quantized caches, on any text",
                 "tq eval kld --kv k4v4,k3v2 --context 2048 --windows 2");
  auto flags = std::make_shared<KldFlags>();
  flags->model.Add(command);
  flags->kv.Add(command);
  command->add_option("--data", flags->data, "Texts (default: the fetched Bible)")
      ->type_name("PATH");
  command->add_option("--context", flags->context, "Tokens of a window");
  command->add_option("--windows", flags->windows, "Windows of each text");
  flags->output.Add(command);
  return {"kld", [flags] { return RunEvalKld(*flags); }};
}

}  // namespace tq::cli
