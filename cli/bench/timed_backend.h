// A backend that measures what attention and the cache take of another one's time.
#pragma once

#include <memory>

#include "runtime/model/backend.h"

namespace tq::cli {

struct StepSeconds {
  double attention = 0;  // reading the cache
  double append = 0;     // writing and sealing
};

// `seconds` is added to in every forward pass and must outlive the backend.
std::unique_ptr<Backend> MakeTimedBackend(std::unique_ptr<Backend> backend, StepSeconds* seconds);

}  // namespace tq::cli
