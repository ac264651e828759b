// Turns a run-time number into a template argument, without macros.
#pragma once

#include <string>

#include "turboquant/base/status.h"

namespace tq {

// Calls fn.template operator()<N>() for the N of kAllowed that equals n. Otherwise kUnsupported,
// with a message that lists what is allowed.
template <int... kAllowed, typename Fn>
Status DispatchInt(int n, const char* what, Fn&& fn) {
  const bool found = ((n == kAllowed && (fn.template operator()<kAllowed>(), true)) || ...);
  if (found) return OkStatus();
  std::string allowed;
  ((allowed += (allowed.empty() ? "" : ", ") + std::to_string(kAllowed)), ...);
  return Unsupported(what, " = ", n, " has no kernel; supported: ", allowed);
}

}  // namespace tq
