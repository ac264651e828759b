#include "turboquant/base/sinks.h"

namespace tq {

void Log(const LogSink& sink, LogLevel level, const std::string& message) {
  if (sink) sink(level, message);
}

bool ReportProgress(const ProgressSink& sink, size_t done, size_t total, const std::string& what) {
  return !sink || sink(done, total, what);
}

}  // namespace tq
