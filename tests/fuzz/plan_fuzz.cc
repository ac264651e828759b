// Any bytes as a config.json and as a log of requests: an error, or numbers that can be planned
// with.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "turboquant/plan/config_reader.h"
#include "turboquant/plan/plan.h"
#include "turboquant/plan/traffic.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const tq::Result<tq::ModelSpec> spec = tq::ReadModelConfig(text, "fuzz");
  if (spec.ok()) {
    TQ_CHECK(spec->Validate().ok());
    const auto planner = tq::Planner::Create(*spec, tq::CacheFormat{}, {});
    TQ_CHECK(planner.ok() && planner->Memory(4096, 2).ok());
    TQ_CHECK(planner->TotalBytes(4096, 2) >= planner->TotalBytes(64, 1));
  } else {
    TQ_CHECK(!spec.status().message().empty());
  }
  const auto count = [](std::string_view s) { return static_cast<int64_t>(s.size()); };
  const tq::Result<tq::Traffic> traffic = tq::ReadTraffic(text, "fuzz", count);
  if (traffic.ok()) {
    for (const tq::TrafficRequest& r : traffic->requests) {
      TQ_CHECK(r.prompt_tokens >= 0 && r.reused_tokens <= static_cast<double>(r.prompt_tokens));
    }
  } else {
    TQ_CHECK(!traffic.status().message().empty());
  }
  return 0;
}
