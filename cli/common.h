// What every command shares: exit codes, flags that recur, progress, Ctrl-C, numbers as text.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "turboquant/base/format_count.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"

namespace tq::cli {

enum ExitCode {
  kDone = 0,
  kCheckFailed = 1,  // the check that was asked for failed
  kBadUse = 2,       // flags or input
  kEnvironment = 3,  // memory, disk, rights, device
  kInterrupted = 130,
};
int ExitCodeOf(const Status& status);

// A command: its flags are added to `app`; run() is called when it was chosen.
struct Command {
  std::string name;
  std::function<Result<int>()> run;
};

// A subcommand whose help shows `example` (a line that can be copied and run) before all else.
CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& what,
                     const std::string& example);

// --- Flags that recur -------------------------------------------------------------------------
struct OutputFlags {
  bool json = false;
  bool quiet = false;
  void Add(CLI::App* app);
};

struct ModelFlags {
  std::string model;  // empty: the only .gguf file of the data folder
  int threads = 0;    // 0: one per physical core
  void Add(CLI::App* app);
  // The path that was asked for, or the default one. kNotFound says how to get or name a model.
  Result<std::string> Path() const;
  Status Validate() const;
};

// kInvalidArgument: --threads that no machine has.
Status CheckThreads(int threads);

// Refuses an empty word where a path was asked for: usually a shell variable that is not set. For
// the options of `app` and of the commands below it, once all are added.
void RefuseEmptyPaths(CLI::App& app);

// Where the fetched model and texts are: $TQ_DATA_DIR, else .cache in this folder, else .cache
// beside the program or in a folder above it. Empty: there is none.
std::string DataFolder();

// --- Output -----------------------------------------------------------------------------------
// A line on stderr. Notes are dropped by --quiet, errors are not.
void PrintNote(const OutputFlags& flags, const std::string& text);
void PrintError(const std::string& command, const std::string& text);
// Writes to stdout; what could not be written is remembered for FlushStdout.
void PrintOut(std::string_view text);
// kUnavailable or kResourceExhausted when stdout did not take everything.
Status FlushStdout();

// A bar on a terminal, a line for every tenth elsewhere, nothing when quiet or within the first
// second; always on stderr. Returns false, which cancels, after Ctrl-C.
class ProgressBar {
 public:
  // time_left: says how long it will take, for work of many minutes.
  explicit ProgressBar(bool quiet, bool time_left = false) : quiet_(quiet), time_left_(time_left) {}
  ~ProgressBar() { Clear(); }
  ProgressSink sink();
  void Clear();  // removes the bar from the terminal

 private:
  bool Show(size_t done, size_t total, const std::string& what);
  std::string TimeLeft(double share);
  bool quiet_, time_left_;
  bool shown_ = false;
  std::optional<std::chrono::steady_clock::time_point> started_;
  // Where work began: what was done before, as after an interruption, says nothing of the speed.
  std::optional<std::pair<double, std::chrono::steady_clock::time_point>> origin_;
  int last_tenth_ = -1;
  std::string last_text_;
};

// --- Ctrl-C -----------------------------------------------------------------------------------
// The first Ctrl-C sets the flag and restores the default action, so that a second one kills.
const std::atomic<bool>& InterruptFlag();
void InstallInterruptHandler();

// --- Numbers as text --------------------------------------------------------------------------
std::string FormatMiB(size_t bytes);    // "12.34 MiB"
using tq::FormatCount;                  // "131,072"
std::string FormatRatio(double ratio);  // "5.97x"; "-" for zero

// --- Surroundings -----------------------------------------------------------------------------
std::string MachineName();  // the processor, from the operating system
size_t PeakRssBytes();
// What prevents a file from being written there, before hours of work go into it.
Status CheckWritable(const std::string& path);
// A word of a command line as a POSIX shell reads it back: quoted where it must be.
std::string ShellWord(const std::string& text);
// " --flag value" for each option of `command` that was given; those in `but` are left out.
std::string GivenOptions(const CLI::App& command, std::span<const std::string_view> but);
std::vector<std::string> SplitList(std::string_view list, char separator);  // trimmed, empties kept
const char* Version();

}  // namespace tq::cli
