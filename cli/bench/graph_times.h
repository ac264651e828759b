// Times of work that is replayed from a CUDA graph.
#pragma once

#include <algorithm>
#include <vector>

#include "turboquant/base/device.h"

namespace tq::cli {

// Microseconds of a layer, sorted: `call` of every layer in one graph, replayed; two replays more
// than `runs` that are not counted.
template <typename Call>
Result<std::vector<double>> GraphTimes(int layers, int runs, const DeviceStream& stream,
                                       const Call& call) {
  TQ_RETURN_IF_ERROR(DeviceGraph::Begin(stream));
  for (int layer = 0; layer < layers; ++layer) TQ_RETURN_IF_ERROR(call(layer));
  TQ_ASSIGN_OR_RETURN(const DeviceGraph graph, DeviceGraph::End(stream));
  TQ_ASSIGN_OR_RETURN(const DeviceEvent start, DeviceEvent::Create());
  TQ_ASSIGN_OR_RETURN(const DeviceEvent end, DeviceEvent::Create());
  std::vector<double> us;
  for (int run = -2; run < runs; ++run) {
    TQ_RETURN_IF_ERROR(start.Record(stream));
    TQ_RETURN_IF_ERROR(graph.Launch(stream));
    TQ_RETURN_IF_ERROR(end.Record(stream));
    TQ_ASSIGN_OR_RETURN(const float ms, DeviceEvent::Milliseconds(start, end));
    if (run >= 0) us.push_back(ms * 1e3 / layers);
  }
  TQ_RETURN_IF_ERROR(stream.Synchronize());
  std::sort(us.begin(), us.end());
  return us;
}

}  // namespace tq::cli
