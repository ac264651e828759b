#include "cli/common.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "turboquant/base/file.h"

namespace tq::cli {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

int g_stdout_error = 0;

void OnInterrupt(int) {
  g_interrupted.store(true);
  std::signal(SIGINT, SIG_DFL);
}

// CLI11's help with the example in front.
class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string example) : example_(std::move(example)) {}
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return "Example:\n  " + example_ + "\n\n" + CLI::Formatter::make_help(app, name, mode);
  }

 private:
  std::string example_;
};

std::vector<std::string> GgufFilesIn(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".gguf") found.push_back(it->path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

int ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk: return kDone;
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable: return kEnvironment;
    case StatusCode::kCancelled: return kInterrupted;
    default: return kBadUse;
  }
}

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& what,
                     const std::string& example) {
  CLI::App* command = app.add_subcommand(name, what);
  auto formatter = std::make_shared<HelpFormatter>(example);
  formatter->column_width(34);
  command->formatter(formatter);
  command->footer("");
  command->option_defaults()->always_capture_default();
  return command;
}

void OutputFlags::Add(CLI::App* app) {
  app->add_flag("--json", json, "Print one JSON document on stdout and nothing else there");
  app->add_flag("--quiet", quiet, "No notes and no progress on stderr; errors stay");
}

void ModelFlags::Add(CLI::App* app) {
  app->add_option("model,--model", model,
                  "A GGUF file or a Hugging Face folder (default: what ./quickstart fetched)")
      ->type_name("FILE");
  app->add_option("--threads", threads, "Threads; 0 = one per physical core")->type_name("N");
}

Result<std::string> ModelFlags::Path() const {
  if (!model.empty()) return model;
  const std::string folder = DataFolder();
  const char* advice =
      "; name one with --model FILE.gguf, or run ./quickstart to fetch a small one";
  if (folder.empty()) return NotFound("no model was named and there is no .cache folder", advice);
  const std::vector<std::string> found = GgufFilesIn(folder);
  if (found.empty()) return NotFound("no model was named and '", folder, "' has none", advice);
  if (found.size() > 1) {
    std::string names;
    for (const std::string& f : found) names += (names.empty() ? "" : ", ") + f;
    return InvalidArgument("no model was named and '", folder, "' has ", found.size(), ": ", names,
                           "; choose one with --model");
  }
  return found.front();
}

Status ModelFlags::Validate() const {
  return CheckThreads(threads);
}

Status CheckThreads(int threads) {
  if (threads >= 0 && threads <= 1024) return OkStatus();
  return InvalidArgument("--threads ", threads, " is outside 0..1024; 0 = one per physical core");
}

void RefuseEmptyPaths(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type != "FILE" && type != "PATH" && type != "FOLDER") continue;
    option->check(CLI::Validator(
        [](const std::string& path) {
          return std::string(path.empty() ? "an empty word is no path; is a variable unset?" : "");
        },
        ""));
  }
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    RefuseEmptyPaths(*command);
  }
}

std::string DataFolder() {
  if (const char* dir = std::getenv("TQ_DATA_DIR"); dir != nullptr && *dir != '\0') return dir;
  if (IsDirectory(".cache")) return ".cache";
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (int up = 0; up < 4 && !error && folder.has_relative_path(); ++up) {
    if (const fs::path cache = folder / ".cache"; IsDirectory(cache.string())) {
      return cache.string();
    }
    folder = folder.parent_path();
  }
  return "";
}

void PrintNote(const OutputFlags& flags, const std::string& text) {
  if (!flags.quiet) std::fprintf(stderr, "%s\n", text.c_str());
}

void PrintError(const std::string& command, const std::string& text) {
  std::fprintf(stderr, "%s: %s\n", command.c_str(), text.c_str());
}

void PrintOut(std::string_view text) {
  if (text.empty() || g_stdout_error != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) g_stdout_error = errno;
}

Status FlushStdout() {
  if (std::fflush(stdout) != 0 && g_stdout_error == 0) g_stdout_error = errno;
  if (g_stdout_error == 0) return OkStatus();
  const std::string message = StrCat("cannot write to stdout: ", std::strerror(g_stdout_error));
  return g_stdout_error == ENOSPC ? ResourceExhausted(message) : Unavailable(message);
}

ProgressSink ProgressBar::sink() {
  return [this](size_t done, size_t total, const std::string& what) {
    return Show(done, total, what);
  };
}

std::string ProgressBar::TimeLeft(double share) {
  if (!time_left_) return "";
  const auto now = std::chrono::steady_clock::now();
  if (!origin_ || share < origin_->first) origin_ = {share, now};
  const double seconds = std::chrono::duration<double>(now - origin_->second).count();
  const double gained = share - origin_->first;
  if (seconds < 5 || gained < 0.002) return "";
  const double left = seconds * (1 - share) / gained;
  return left < 90 ? fmt::format(", {:.0f} s left", left)
                   : fmt::format(", {:.0f} min left", left / 60);
}

bool ProgressBar::Show(size_t done, size_t total, const std::string& what) {
  if (g_interrupted.load()) return false;
  if (quiet_ || total == 0) return true;
  const auto now = std::chrono::steady_clock::now();
  if (!started_) started_ = now;
  if (!shown_ && now - *started_ < std::chrono::seconds(1)) return true;
  const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const int tenth = static_cast<int>(share * 10);
  if (::isatty(STDERR_FILENO) != 0) {
    const int width = 30, filled = static_cast<int>(share * width);
    const std::string text = fmt::format(
        "\r[{}{}] {:3.0f} %  {:<{}.{}}", std::string(filled, '='), std::string(width - filled, ' '),
        100 * share, what + TimeLeft(share), time_left_ ? 40 : 24, time_left_ ? 40 : 24);
    if (text != last_text_) std::fputs(text.c_str(), stderr);
    last_text_ = text;
    shown_ = true;
    return true;
  }
  const std::string left = TimeLeft(share);
  if (tenth != last_tenth_) {
    std::fprintf(stderr, "%3d %%  %s%s\n", tenth * 10, what.c_str(), left.c_str());
  }
  last_tenth_ = tenth;
  return true;
}

void ProgressBar::Clear() {
  if (shown_) std::fprintf(stderr, "\r%s\r", std::string(84, ' ').c_str());
  shown_ = false;
  started_.reset();
  last_tenth_ = -1;
  last_text_.clear();
}

const std::atomic<bool>& InterruptFlag() {
  return g_interrupted;
}

void InstallInterruptHandler() {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;  // no SA_RESTART: a blocked read of a prompt ends
  sigaction(SIGINT, &action, nullptr);
}

std::string FormatMiB(size_t bytes) {
  return fmt::format("{:.2f} MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
}

std::string FormatRatio(double ratio) {
  return ratio > 0 ? fmt::format("{:.2f}x", ratio) : "-";
}

std::string MachineName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

size_t PeakRssBytes() {
  struct rusage usage {};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return static_cast<size_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

Status CheckWritable(const std::string& path) {
  if (IsDirectory(path)) return InvalidArgument("'", path, "' is a folder; a file was expected");
  if (FileExists(path)) {
    if (::access(path.c_str(), W_OK) == 0) return OkStatus();
    return Unavailable("cannot write '", path, "': ", std::strerror(errno));
  }
  const std::string folder = fs::path(path).parent_path().string();
  if (!folder.empty() && !IsDirectory(folder)) {
    return NotFound("cannot write '", path, "': there is no folder '", folder, "'");
  }
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK) == 0) return OkStatus();
  return Unavailable("cannot write '", path, "': ", std::strerror(errno));
}

std::string ShellWord(const std::string& text) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,:=@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string GivenOptions(const CLI::App& command, std::span<const std::string_view> but) {
  std::string out;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string name = "--" + option->get_lnames().front();
    if (std::find(but.begin(), but.end(), name) != but.end()) continue;
    if (option->get_expected_max() == 0) {
      out += " " + name;
      continue;
    }
    for (const std::string& value : option->results()) out += " " + name + " " + ShellWord(value);
  }
  return out;
}

std::vector<std::string> SplitList(std::string_view list, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = list.find(separator);
    std::string_view part = list.substr(0, end);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    parts.emplace_back(part);
    if (end == std::string_view::npos) return parts;
    list.remove_prefix(end + 1);
  }
}

const char* Version() {
  return TQ_VERSION;
}

}  // namespace tq::cli
