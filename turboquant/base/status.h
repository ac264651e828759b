// Errors as values. What the outside world can cause (a file, a flag, a shape from a caller,
// memory, a device) is a Status; what only we can cause is TQ_CHECK.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <variant>

namespace tq {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // the caller's words, numbers or shapes
  kNotFound,            // a file or a name that is not there
  kFailedPrecondition,  // right call, wrong state
  kDataLoss,            // a file that is truncated or damaged
  kResourceExhausted,   // memory or disk
  kUnsupported,         // understood, but there is no such kernel, type or architecture
  kUnavailable,         // the environment: no rights, no device
  kCancelled,           // the user stopped it
};

const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string ToString() const;
  // The same error with `context: ` in front of the message; OK stays OK.
  Status WithContext(const std::string& context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  // Implicit on purpose, so that `return value;` and `return InvalidArgument(...)` both work.
  Result(T value) : v_(std::move(value)) {}            // NOLINT(google-explicit-constructor)
  Result(Status status) : v_(std::move(status)) {}     // NOLINT(google-explicit-constructor)
  bool ok() const { return std::holds_alternative<T>(v_); }
  Status status() const { return ok() ? OkStatus() : std::get<Status>(v_); }
  T& operator*() & { return std::get<T>(v_); }
  const T& operator*() const& { return std::get<T>(v_); }
  T&& operator*() && { return std::get<T>(std::move(v_)); }
  T* operator->() { return &std::get<T>(v_); }
  const T* operator->() const { return &std::get<T>(v_); }

 private:
  std::variant<T, Status> v_;
};

// Concatenates anything that has operator<<.
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

template <typename... Args>
Status InvalidArgument(const Args&... a) { return {StatusCode::kInvalidArgument, StrCat(a...)}; }
template <typename... Args>
Status NotFound(const Args&... a) { return {StatusCode::kNotFound, StrCat(a...)}; }
template <typename... Args>
Status FailedPrecondition(const Args&... a) {
  return {StatusCode::kFailedPrecondition, StrCat(a...)};
}
template <typename... Args>
Status DataLoss(const Args&... a) { return {StatusCode::kDataLoss, StrCat(a...)}; }
template <typename... Args>
Status ResourceExhausted(const Args&... a) {
  return {StatusCode::kResourceExhausted, StrCat(a...)};
}
template <typename... Args>
Status Unsupported(const Args&... a) { return {StatusCode::kUnsupported, StrCat(a...)}; }
template <typename... Args>
Status Unavailable(const Args&... a) { return {StatusCode::kUnavailable, StrCat(a...)}; }
template <typename... Args>
Status Cancelled(const Args&... a) { return {StatusCode::kCancelled, StrCat(a...)}; }

// Prints to stderr and aborts: for TQ_CHECK only.
[[noreturn]] void CheckFailed(const char* file, int line, const char* expr);

}  // namespace tq

#define TQ_CONCAT_(a, b) a##b
#define TQ_CONCAT(a, b) TQ_CONCAT_(a, b)

#define TQ_RETURN_IF_ERROR(expr)                       \
  do {                                                 \
    if (::tq::Status tq_s = (expr); !tq_s.ok()) return tq_s; \
  } while (false)

#define TQ_ASSIGN_OR_RETURN_(r, lhs, expr) \
  auto r = (expr);                         \
  if (!r.ok()) return r.status();          \
  lhs = std::move(*r)
#define TQ_ASSIGN_OR_RETURN(lhs, expr) TQ_ASSIGN_OR_RETURN_(TQ_CONCAT(tq_r_, __LINE__), lhs, expr)

// An invariant that no input can break. Always on.
#define TQ_CHECK(expr) \
  ((expr) ? static_cast<void>(0) : ::tq::CheckFailed(__FILE__, __LINE__, #expr))
#ifdef NDEBUG
#define TQ_DCHECK(expr) static_cast<void>(0)
#else
#define TQ_DCHECK(expr) TQ_CHECK(expr)
#endif
