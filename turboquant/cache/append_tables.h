// What the append kernel knows of each head, made on the host.
#pragma once

#include <vector>

#include "turboquant/cache/append_params.h"
#include "turboquant/cache/device_cache.h"

namespace tq {

struct AppendTables {
  std::vector<AppendHead> heads;      // [num_layers][num_kv_heads]
  std::vector<AppendCenter> centers;  // [heads with a centre][head_dim]
  std::vector<float> probes;
};
// Every format fits: DeviceCache::CheckAppend.
AppendTables MakeAppendTables(const DeviceCache& cache);

// Whether the kernel writes and seals this format beside such a window.
bool CanAppend(const HeadFormat& format, RecentType recent);

}  // namespace tq
