// Any bytes as a profile: an error, or a profile that survives being written and read again and
// that applies to a cache of its own shape.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "turboquant/calibrate/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const tq::Result<tq::Profile> profile = tq::Profile::Parse(text, "", "fuzz");
  if (!profile.ok()) {
    TQ_CHECK(!profile.status().message().empty());
    return 0;
  }
  const tq::Result<tq::Profile> again = tq::Profile::Parse(profile->ToJson(), "", "again");
  TQ_CHECK(again.ok() && again->formats == profile->formats);
  tq::CacheConfig config;
  config.num_layers = profile->model.num_layers;
  config.num_kv_heads = profile->model.num_kv_heads;
  config.head_dim = profile->model.head_dim;
  std::string note;
  TQ_CHECK(profile->Apply(0, 0, &config, &note).ok());
  return 0;
}
