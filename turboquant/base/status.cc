#include "turboquant/base/status.h"

#include <cstdio>
#include <cstdlib>

namespace tq {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kFailedPrecondition: return "failed precondition";
    case StatusCode::kDataLoss: return "damaged data";
    case StatusCode::kResourceExhausted: return "resource exhausted";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kUnavailable: return "unavailable";
    case StatusCode::kCancelled: return "cancelled";
  }
  return "unknown";
}

std::string Status::ToString() const {
  return ok() ? "ok" : StrCat(StatusCodeName(code_), ": ", message_);
}

Status Status::WithContext(const std::string& context) const {
  return ok() ? *this : Status(code_, StrCat(context, ": ", message_));
}

void CheckFailed(const char* file, int line, const char* expr) {
  std::fprintf(stderr, "%s:%d: internal check failed: %s\n", file, line, expr);
  std::abort();
}

}  // namespace tq
