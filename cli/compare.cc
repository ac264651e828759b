// tq compare: one long document through the plain cache and through quantized ones.
#include "runtime/evaluate/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/commands.h"
#include "cli/data_flags.h"
#include "cli/kv_choice.h"
#include "cli/loaded_model.h"
#include "cli/table.h"
#include "runtime/evaluate/report.h"
#include "runtime/evaluate/results_json.h"
#include "runtime/model/model_profile.h"
#include "turboquant/base/file.h"
#include "turboquant/base/isa.h"

namespace tq::cli {
namespace {

struct CompareFlags {
  ModelFlags model;
  KvFlags kv;
  OutputFlags output;
  std::string data, question, report;
  int64_t context = 6144;
  bool default_formats = false;  // --kv was not given: the model's profile is compared too
};

// The text that was asked for, or the fetched Bible.
Result<std::pair<std::string, std::string>> ReadText(const CompareFlags& flags) {
  std::string path = flags.data;
  if (path.empty()) {
    TQ_ASSIGN_OR_RETURN(path, DefaultText());
  }
  TQ_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  const std::string name = std::filesystem::path(path).filename().string();
  TQ_RETURN_IF_ERROR(CheckDocumentText(name, text));
  return std::pair(name, std::move(text));
}

std::string OneLine(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    }
  }
  return out;
}

std::string TextReport(const CompareResult& r) {
  std::string out = fmt::format("{} tokens of {} through each cache of {}, side by side\n\n",
                                FormatCount(r.tokens), r.document.name, r.model_name);
  TextTable table({"format", "cache\nMiB", "ratio\nhere", "ratio at\n131,072", "bits per\nvalue",
                   "scales", "ms per\ntoken", "KL mean", "KL 99 %", "KL mean\n>= 1,024 q.",
                   "same top", "ppl", "Pareto", "answer"});
  for (const CompareRow& row : r.rows) {
    std::vector<std::string> cells = {
        row.name,
        fmt::format("{:.2f}", static_cast<double>(row.bytes.total()) / (1024.0 * 1024.0)),
        FormatRatio(row.ratio),
        FormatRatio(row.ratio_at_131072),
        fmt::format("{:.3f}", row.bits_per_value),
        fmt::format("{:.1f} %", 100 * row.scales_share),
        fmt::format("{:.2f}", row.decode_ms)};
    if (row.is_plain) {
      cells.insert(cells.end(), {"-", "-", "-", "-"});
    } else {
      cells.push_back(fmt::format("{:.5f}", row.all.mean));
      cells.push_back(fmt::format("{:.4f}", row.all.p99));
      cells.push_back(row.behind.positions == 0 ? "-" : fmt::format("{:.5f}", row.behind.mean));
      cells.push_back(fmt::format("{:.2f} %", 100 * row.all.same_top));
    }
    cells.push_back(fmt::format("{:.3f}", row.all.ppl_q));
    cells.push_back(row.on_pareto_front ? "*" : "");
    cells.push_back(r.document.expected.empty() ? "-" : row.answer_is_right ? "found" : "missed");
    table.Add(std::move(cells));
  }
  out += table.ToString();
  out += fmt::format("\nKL in nats to the f16 cache over {} positions",
                     FormatCount(r.floor.positions));
  const auto widest = std::max_element(
      r.rows.begin(), r.rows.end(),
      [](const auto& a, const auto& b) { return a.behind.positions < b.behind.positions; });
  if (widest != r.rows.end() && widest->behind.positions > 0) {
    out += fmt::format(", {} of them with >= {} quantized tokens behind",
                       FormatCount(widest->behind.positions), FormatCount(CompareResult::kBehind));
  }
  out += fmt::format(". Noise floor ({}): {:.6f}.\n", r.floor_name, r.floor.mean);
  out +=
      "Scales: share of a sealed block. Pareto *: no row has both fewer bits and a smaller KL.\n";
  if (!r.document.detail.empty()) {
    out += fmt::format("\nPlanted at 40 % of the text: \"{}\"\n", r.document.detail);
  } else {
    out += "\n";
  }
  out += fmt::format("Question: \"{}\"\n", OneLine(r.document.question));
  TextTable answers({"format", "answer"}, {0, 1});
  for (const CompareRow& row : r.rows) answers.Add({row.name, OneLine(row.answer)});
  out += answers.ToString();
  if (!AnswersAreInformative(r)) {
    out +=
        "The plain cache misses the detail too: here the answers say nothing about the formats.\n";
  }
  return out;
}

std::string CommandLine(const CompareFlags& flags) {
  std::string out = "tq compare";
  if (!flags.model.model.empty()) out += " --model " + ShellWord(flags.model.model);
  out += fmt::format(" --context {} {}", flags.context, flags.kv.CommandLine());
  if (!flags.data.empty()) out += " --data " + ShellWord(flags.data);
  if (!flags.question.empty()) out += " --question " + ShellWord(flags.question);
  if (flags.model.threads > 0) out += fmt::format(" --threads {}", flags.model.threads);
  return out;
}

// Each name of --kv once, in order, with pins applied to what is quantized.
Result<std::vector<CompareFormat>> Formats(const CompareFlags& flags, const KvModel& model) {
  std::vector<CompareFormat> formats;
  std::vector<std::string> said;
  for (const std::string& name : SplitList(flags.kv.kv, ',')) {
    KvFlags one = flags.kv;
    one.kv = name;
    TQ_ASSIGN_OR_RETURN(KvChoice choice, ChooseKv(model, one, flags.context));
    const bool plain = std::all_of(choice.config.formats.begin(), choice.config.formats.end(),
                                   [](const HeadFormat& f) { return f == HeadFormat{}; });
    if (plain && one.pin.empty()) {
      if (choice.quantizes && NumQuantizedLayers(choice.config) == 0 &&
          choice.config.window(0) > 0) {
        return Unsupported("--kv ", choice.name, ": all ", choice.config.num_layers,
                           " layers have a sliding window and are kept in 16 bit, so there is "
                           "nothing to compare");
      }
      choice.name = "f16";
    }
    for (const std::string& note : choice.notes) {
      // This command measures what the note about keys warns of.
      if (note.find("tq compare") != std::string::npos) continue;
      if (std::find(said.begin(), said.end(), note) != said.end()) continue;
      said.push_back(note);
      PrintNote(flags.output, note);
    }
    if (std::any_of(formats.begin(), formats.end(),
                    [&](const CompareFormat& f) { return f.name == choice.name; })) {
      return InvalidArgument("--kv names ", choice.name, " twice");
    }
    formats.push_back({choice.name, std::move(choice.config)});
  }
  return formats;
}

Result<int> RunCompare(CompareFlags flags) {
  if (flags.context < 1) return InvalidArgument("--context ", flags.context, " is below 1");
  for (const std::string& name : SplitList(flags.kv.kv, ',')) {
    if (name.empty()) {
      return InvalidArgument("--kv '", flags.kv.kv, "' has an empty entry; write f16,k8v4,k3v2");
    }
    TQ_RETURN_IF_ERROR(CheckKvName(name));
  }
  TQ_RETURN_IF_ERROR(flags.kv.ValidateWindow());
  TQ_RETURN_IF_ERROR(flags.model.Validate());
  if (!flags.report.empty()) TQ_RETURN_IF_ERROR(CheckWritable(flags.report));
  TQ_ASSIGN_OR_RETURN(auto named_text, ReadText(flags));
  TQ_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(flags.model, flags.output, flags.context));
  TQ_ASSIGN_OR_RETURN(const int64_t context,
                      ContextLen(flags.context, loaded.model->arch().context_len, flags.output));
  const KvModel model = loaded.ForKv();
  if (flags.default_formats) {
    TQ_ASSIGN_OR_RETURN(const std::optional<ModelProfile> found,
                        FindModelProfile(model.path, model.file));
    if (found) flags.kv.kv += ",auto";
  }
  TQ_ASSIGN_OR_RETURN(std::vector<CompareFormat> formats, Formats(flags, model));

  CompareOptions options;
  TQ_ASSIGN_OR_RETURN(KvChoice plain, UniformKv(model, "f16", flags.kv));
  TQ_ASSIGN_OR_RETURN(KvChoice floor, UniformKv(model, "k8v8", flags.kv));
  options.plain = {plain.name, std::move(plain.config)};
  options.floor = {floor.name, std::move(floor.config)};
  options.formats = std::move(formats);
  options.context = context;
  options.cancel = &InterruptFlag();

  DocumentOptions document_options;
  document_options.name = named_text.first;
  document_options.text = named_text.second;
  document_options.max_tokens = context - options.answer_tokens;
  document_options.question = flags.question;
  TQ_ASSIGN_OR_RETURN(Document document, BuildDocument(*loaded.tokenizer, document_options));

  ProgressBar progress(flags.output.quiet);
  options.progress = progress.sink();
  TQ_ASSIGN_OR_RETURN(const CompareResult result,
                      Compare(*loaded.model, *loaded.tokenizer, std::move(document), options));
  progress.Clear();

  // What took minutes is shown before a report that may fail.
  if (flags.output.json) {
    nlohmann::ordered_json j = CompareJson(result, CurrentIsa());
    j["threads"] = loaded.pool->num_threads();
    j["peak_rss_bytes"] = PeakRssBytes();
    PrintOut(j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  } else {
    PrintOut(TextReport(result));
  }
  if (!flags.report.empty()) {
    Provenance provenance;
    provenance.model_path = std::filesystem::path(loaded.path).filename().string();
    provenance.weight_types = loaded.model->weights().types;
    provenance.tokenizer = loaded.tokenizer->Describe();
    provenance.machine = MachineName();
    provenance.threads = loaded.pool->num_threads();
    provenance.isa = CurrentIsa();
    provenance.version = Version();
    provenance.command = CommandLine(flags);
    TQ_RETURN_IF_ERROR(WriteFileAtomic(flags.report, RenderReport(result, provenance)));
    if (!flags.output.json) PrintOut(fmt::format("\nReport: {}\n", flags.report));
  }
  return kDone;
}

}  // namespace

Command AddCompare(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "compare", "One long document: plain cache against quantized, side by side",
                 "tq compare --context 2048 --kv f16,k4v4,k3v2 --report report.html");
  auto flags = std::make_shared<CompareFlags>();
  flags->kv.kv = "f16,k8v4,k4v4,k3v2";
  flags->model.Add(command);
  command->add_option("--context", flags->context, "Tokens of document, question and answer");
  command->add_option(
      "--kv", flags->kv.kv,
      "Formats to compare: presets, profile folders, or auto (default: f16,k8v4,k4v4,k3v2 "
      "and the model's profile, if there is one)");
  command->add_option("--pin", flags->kv.pin,
                      "Other formats for some layers or layer:head, \"1,10=k8v4;3:0=k4v4\"");
  flags->kv.AddWindow(command);
  command
      ->add_option("--data", flags->data,
                   "A text or code file to read (default: the fetched Bible)")
      ->type_name("FILE");
  command->add_option("--question", flags->question,
                      "End the document with this instead of planting a detail and asking for it");
  command->add_option("--report", flags->report, "Write a self-contained HTML report there")
      ->type_name("FILE");
  flags->output.Add(command);
  return {"compare", [flags, command] {
            flags->default_formats = command->count("--kv") == 0;
            return RunCompare(*flags);
          }};
}

}  // namespace tq::cli
