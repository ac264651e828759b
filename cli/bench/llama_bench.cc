#include "cli/bench/llama_bench.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "turboquant/base/file.h"

extern char** environ;

namespace tq::cli {
namespace {

bool IsProgram(const std::string& path) {
  return !IsDirectory(path) && ::access(path.c_str(), X_OK) == 0;
}

// Both ends of a pipe, closed at the end.
struct Pipe {
  int ends[2] = {-1, -1};
  bool Open() { return ::pipe2(ends, O_CLOEXEC) == 0; }
  void CloseEnd(int i) {
    if (ends[i] >= 0) ::close(ends[i]);
    ends[i] = -1;
  }
  ~Pipe() {
    CloseEnd(0);
    CloseEnd(1);
  }
};

std::string LastLine(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text.substr(text.find_last_of('\n') + 1);
}

}  // namespace

void AddPeerFlags(CLI::App* command, std::string* peer, std::string* llama_bench) {
  command->add_option("--peer", *peer, "Measure this beside: llama.cpp")->capture_default_str();
  command
      ->add_option("--llama-bench", *llama_bench,
                   "Its program (default: on PATH, or built by bench/peers)")
      ->type_name("FILE")
      ->capture_default_str();
}

Result<std::string> FindLlamaBench(const std::string& named) {
  constexpr char kFix[] =
      "; bench/peers/build_llama_cpp.sh builds it, or name one with --llama-bench FILE";
  if (!named.empty()) {
    if (IsProgram(named)) return named;
    return NotFound("--llama-bench '", named, "' is no program", kFix);
  }
  if (const char* path = std::getenv("PATH"); path != nullptr) {
    for (const std::string& folder : SplitList(path, ':')) {
      const std::string file = folder + "/llama-bench";
      if (!folder.empty() && IsProgram(file)) return file;
    }
  }
  if (const std::string data = DataFolder(); !data.empty()) {
    const std::string file = data + "/llama.cpp/build/bin/llama-bench";
    if (IsProgram(file)) return file;
  }
  return NotFound("there is no llama-bench on PATH or in the data folder", kFix);
}

std::vector<std::string> LlamaBenchCommand(const PeerSettings& s) {
  return {s.program,
          "-m",
          s.model,
          "-t",
          std::to_string(s.threads),
          "-fa",
          "1",
          "-ctk",
          s.cache_type,
          "-ctv",
          s.cache_type,
          "-p",
          std::to_string(s.prompt_tokens),
          "-n",
          std::to_string(s.tokens),
          "-d",
          std::to_string(s.depth),
          "-r",
          std::to_string(s.runs),
          "-o",
          "json"};
}

Result<ProgramOutput> RunProgram(const std::vector<std::string>& words, double most_seconds) {
  Pipe pipes[2];  // stdout, stderr
  if (!pipes[0].Open() || !pipes[1].Open()) {
    return Unavailable("no pipe to '", words[0], "': ", std::strerror(errno));
  }
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipes[0].ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipes[1].ends[1], STDERR_FILENO);
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return Unavailable("cannot run '", words[0], "': ", std::strerror(error));
  pipes[0].CloseEnd(1);
  pipes[1].CloseEnd(1);

  ProgramOutput result;
  std::string* const texts[] = {&result.out, &result.err};
  const auto start = std::chrono::steady_clock::now();
  while (pipes[0].ends[0] >= 0 || pipes[1].ends[0] >= 0) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    result.timed_out |= took.count() > most_seconds;
    if (result.timed_out || InterruptFlag().load()) {
      ::kill(pid, SIGKILL);
      break;
    }
    pollfd waiting[] = {{pipes[0].ends[0], POLLIN, 0}, {pipes[1].ends[0], POLLIN, 0}};
    if (::poll(waiting, 2, 100) < 0 && errno != EINTR) break;
    for (int i = 0; i < 2; ++i) {
      if (waiting[i].revents == 0) continue;
      char bytes[4096];
      const ssize_t n = ::read(waiting[i].fd, bytes, sizeof bytes);
      if (n > 0) texts[i]->append(bytes, static_cast<size_t>(n));
      if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) pipes[i].CloseEnd(0);
    }
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (InterruptFlag().load()) return Cancelled("'", words[0], "' was stopped");
  return result;
}

Result<PeerSpeed> ParseLlamaBench(std::string_view text, bool prompt) {
  const char* const key = prompt ? "n_prompt" : "n_gen";
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  if (!j.is_array()) {
    return DataLoss("llama-bench: ", text.size(), " bytes of output are no JSON array");
  }
  for (const nlohmann::json& row : j) {
    if (!row.is_object() || !row.contains(key) || !row[key].is_number_integer()) continue;
    if (row[key].get<int64_t>() <= 0) continue;
    if (!row.contains("avg_ts") || !row["avg_ts"].is_number() || !(row["avg_ts"] > 0)) {
      return DataLoss("llama-bench: a result without tokens per second ('avg_ts')");
    }
    PeerSpeed speed;
    speed.tokens_per_second = row["avg_ts"].get<double>();
    if (row.contains("samples_ts") && row["samples_ts"].is_array()) {
      for (const nlohmann::json& sample : row["samples_ts"]) {
        if (sample.is_number()) speed.runs.push_back(sample.get<double>());
      }
    }
    if (speed.runs.empty()) speed.runs = {speed.tokens_per_second};
    if (row.contains("build_commit") && row["build_commit"].is_string()) {
      speed.build = row["build_commit"].get<std::string>();
      if (row.contains("build_number") && row["build_number"].is_number_integer()) {
        speed.build += StrCat(" (", row["build_number"].get<int64_t>(), ")");
      }
    }
    return speed;
  }
  return DataLoss("llama-bench: none of its ", j.size(), " results ",
                  prompt ? "reads a prompt" : "generates tokens", " ('", key, "')");
}

Result<PeerSpeed> RunLlamaBench(const PeerSettings& settings) {
  const std::vector<std::string> command = LlamaBenchCommand(settings);
  TQ_ASSIGN_OR_RETURN(const ProgramOutput output, RunProgram(command, settings.most_seconds));
  if (output.timed_out) {
    return Unavailable("took more than ", settings.most_seconds, " s (--peer-seconds)");
  }
  if (output.exit_code != 0) {
    return FailedPrecondition("llama-bench ended with ", output.exit_code, ": ",
                              LastLine(output.err));
  }
  return ParseLlamaBench(output.out, settings.tokens == 0);
}

}  // namespace tq::cli
