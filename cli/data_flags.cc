#include "cli/data_flags.h"

#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "turboquant/base/file.h"

namespace tq::cli {
namespace {

Result<std::vector<Redaction>> Redactions(const DataFlags& flags) {
  std::vector<Redaction> out;
  const auto add = [&](const std::string& text, const std::string& where) {
    Result<std::vector<Redaction>> parsed = ParseRedactions(text);
    if (!parsed.ok()) return parsed.status().WithContext(where);
    out.insert(out.end(), parsed->begin(), parsed->end());
    return OkStatus();
  };
  if (!flags.redact_file.empty()) {
    TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.redact_file));
    TQ_RETURN_IF_ERROR(add(text, "--redact-file '" + flags.redact_file + "'"));
  }
  for (const std::string& line : flags.redact) TQ_RETURN_IF_ERROR(add(line, "--redact"));
  return out;
}

}  // namespace

Result<std::string> DefaultText() {
  const std::string folder = DataFolder();
  const std::string path =
      (std::filesystem::path(folder.empty() ? ".cache" : folder) / "bible.txt").string();
  if (FileExists(path)) return path;
  return NotFound("no data was named and there is no '", path,
                  "'; name your own with --data FILE, or run ./quickstart to fetch a text");
}

Status CheckHasPart(const Corpus& corpus, std::string_view part, const std::string& who) {
  const bool held_out = part == "held-out";
  if (!(held_out ? corpus.held_out : corpus.calibration).empty()) return OkStatus();
  const CorpusReport& r = corpus.report;
  std::string why = fmt::format("{} lines of logs and {} texts were read", FormatCount(r.lines),
                                FormatCount(r.texts));
  for (const std::string& line : CorpusLosses(r)) why += "; " + line;
  for (const std::string& note : r.notes) why += "; " + note;
  return InvalidArgument(who, ": the data has no ", held_out ? "held-out" : "calibration",
                         " part (", why, "); give more data, or a ",
                         held_out ? "larger" : "smaller", " --held-out-share");
}

void DataFlags::Add(CLI::App* app) {
  app->add_option("--data", data,
                  "Requests (JSON lines, also .gz and .zst), texts, or folders of them: your own "
                  "traffic")
      ->type_name("PATH");
  app->add_option("--redact", redact,
                  "Replace what matches before anything is kept: \"REGEX\" or \"REGEX => TEXT\"")
      ->type_name("REGEX")
      ->expected(1)
      ->take_all();
  app->add_option("--redact-file", redact_file, "A file of such lines")->type_name("FILE");
  app->add_option("--seed", seed, "Seed of what is sampled and of the parts")
      ->capture_default_str();
  app->add_option("--max-tokens", max_tokens, "Read at most about so many tokens, of all parts")
      ->capture_default_str();
  app->add_option("--held-out-share", held_out_share,
                  "Share of the data that calibration never sees")
      ->capture_default_str();
  app->add_option("--shared-prefix", shared_prefix,
                  "A request that shares this much of its beginning with a longer one is dropped")
      ->capture_default_str();
}

void DataFlags::AddPart(CLI::App* app) {
  app->add_option("--part", part,
                  "Which part of the data: all, calibration, held-out (as a calibration with the "
                  "same flags divides it)")
      ->capture_default_str();
}

Status DataFlags::Validate() const {
  if (part != "all" && part != "calibration" && part != "held-out") {
    return InvalidArgument("--part '", part, "' is not all, calibration or held-out");
  }
  for (const std::string& path : data) {
    if (!FileExists(path)) return NotFound("--data '", path, "': there is no such file or folder");
  }
  return Redactions(*this).status();
}

Result<Corpus> DataFlags::Read(int64_t context_len, const OutputFlags& output, Notes notes) const {
  TQ_RETURN_IF_ERROR(Validate());
  CorpusOptions options;
  options.paths = data;
  if (data.empty()) {
    TQ_ASSIGN_OR_RETURN(const std::string text, DefaultText());
    PrintNote(output, "data: " + text);
    options.paths = {text};
  }
  TQ_ASSIGN_OR_RETURN(options.redactions, Redactions(*this));
  options.seed = seed;
  options.max_tokens = max_tokens;
  options.held_out_share = held_out_share;
  options.shared_prefix = shared_prefix;
  options.context_len = context_len;
  ProgressBar progress(output.quiet);
  options.progress = progress.sink();
  TQ_ASSIGN_OR_RETURN(Corpus corpus, ReadCorpus(options));
  progress.Clear();
  if (part != "all") TQ_RETURN_IF_ERROR(CheckHasPart(corpus, part, "--part " + part));
  if (notes == Notes::kLeave) return corpus;
  for (const std::string& note : corpus.report.notes) PrintNote(output, "data: " + note);
  return corpus;
}

Result<Redactor> DataFlags::MakeRedactor() const {
  TQ_ASSIGN_OR_RETURN(const std::vector<Redaction> redactions, Redactions(*this));
  return Redactor::Create(redactions);
}

std::vector<CorpusItem> DataFlags::ItemsOf(Corpus corpus) const {
  if (part == "calibration") return std::move(corpus.calibration);
  if (part == "held-out") return std::move(corpus.held_out);
  std::vector<CorpusItem> all = std::move(corpus.calibration);
  for (CorpusItem& item : corpus.held_out) all.push_back(std::move(item));
  return all;
}

std::string DataFlags::CommandLine(ShownIn where) const {
  std::string out;
  for (const std::string& path : data) out += " --data " + ShellWord(path);
  if (!redact_file.empty()) out += " --redact-file " + ShellWord(redact_file);
  if (where == ShownIn::kTerminal) {
    for (const std::string& line : redact) out += " --redact " + ShellWord(line);
  } else if (!redact.empty()) {
    out += " --redact-file EXPRESSIONS.txt";
  }
  out += fmt::format(" --seed {} --max-tokens {} --held-out-share {:g}", seed, max_tokens,
                     held_out_share);
  if (shared_prefix != DataFlags().shared_prefix) {
    out += fmt::format(" --shared-prefix {:g}", shared_prefix);
  }
  if (part != "all") out += " --part " + part;
  return out.substr(1);
}

}  // namespace tq::cli
