// Where the library's words go. It never prints: callers hand it sinks.
#pragma once

#include <functional>
#include <string>

namespace tq {

enum class LogLevel { kDebug, kInfo, kWarning };

// Called from one thread at a time. An empty function drops the message.
using LogSink = std::function<void(LogLevel, const std::string&)>;

// Long work reports (done, total, what) and asks whether to go on: false cancels.
using ProgressSink = std::function<bool(size_t done, size_t total, const std::string& what)>;

void Log(const LogSink& sink, LogLevel level, const std::string& message);
// True when there is no sink or the sink says to go on.
bool ReportProgress(const ProgressSink& sink, size_t done, size_t total, const std::string& what);

}  // namespace tq
