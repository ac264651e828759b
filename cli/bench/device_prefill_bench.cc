#include "cli/bench/device_prefill_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/bench/device_attention_bench.h"
#include "cli/bench/measure.h"
#include "cli/table.h"

namespace tq::cli {
namespace {

constexpr size_t kDistinctValues = size_t{1} << 22;  // of a tensor; the rest repeats them

std::vector<f16_t> RandomHalves(size_t n, uint64_t state) {
  std::vector<f16_t> x(n);
  for (f16_t& h : x) {  // near enough to normal: a sum of four
    float sum = 0;
    const uint64_t bits = SplitMix64(state);
    for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xffff) * 0x1p-16f;
    h = F16FromF32((sum - 2.f) * 1.7320508f);
  }
  return x;
}

Result<DeviceBuffer> RandomTensor(size_t values, uint64_t seed, const DeviceStream& stream) {
  TQ_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Allocate(values * sizeof(f16_t)));
  const std::vector<f16_t> some = RandomHalves(std::min(values, kDistinctValues), seed);
  TQ_RETURN_IF_ERROR(buffer.Upload(some.data(), some.size() * sizeof(f16_t), 0, stream));
  for (size_t filled = some.size(); filled < values;) {
    const size_t more = std::min(filled, values - filled);
    TQ_RETURN_IF_ERROR(
        buffer.Copy(buffer, more * sizeof(f16_t), 0, filled * sizeof(f16_t), stream));
    filled += more;
  }
  TQ_RETURN_IF_ERROR(stream.Synchronize());
  return buffer;
}

template <typename Call>
Result<std::vector<double>> Times(int runs, const DeviceStream& stream, const Call& call) {
  TQ_ASSIGN_OR_RETURN(const DeviceEvent start, DeviceEvent::Create());
  TQ_ASSIGN_OR_RETURN(const DeviceEvent end, DeviceEvent::Create());
  std::vector<double> us;
  for (int run = -2; run < runs; ++run) {  // the first two are not counted
    TQ_RETURN_IF_ERROR(start.Record(stream));
    TQ_RETURN_IF_ERROR(call());
    TQ_RETURN_IF_ERROR(end.Record(stream));
    TQ_ASSIGN_OR_RETURN(const float ms, DeviceEvent::Milliseconds(start, end));
    if (run >= 0) us.push_back(ms * 1e3);
  }
  std::sort(us.begin(), us.end());
  return us;
}

}  // namespace

Result<DevicePrefillTime> MeasureDevicePrefill(const DevicePrefillCase& c,
                                               const DeviceStream& stream) {
  CacheConfig config;
  config.num_layers = 1;
  config.num_kv_heads = c.num_kv_heads;
  config.head_dim = c.head_dim;
  config.recent_len = c.recent_len;
  config.sink_len = c.sink_len;
  config.formats.assign(static_cast<size_t>(c.num_kv_heads), c.format);
  const int64_t blocks = DivCeil(c.tokens, kPageLen) + 1;
  TQ_ASSIGN_OR_RETURN(
      const auto cache,
      DeviceCache::Create(
          config, {.max_tokens = c.tokens, .open_slots = blocks, .sealed_slots = blocks}, stream));
  cache->ShuffleFreeSlots(3);
  TQ_RETURN_IF_ERROR(cache->Reserve(0, c.tokens, stream));
  TQ_ASSIGN_OR_RETURN(const DeviceBuffer id, DeviceBuffer::Allocate(sizeof(int32_t)));
  TQ_RETURN_IF_ERROR(id.Fill(0, stream));
  TQ_RETURN_IF_ERROR(cache->Advance(id.as<int32_t>(), 1, c.tokens, stream));
  const size_t kv_values = static_cast<size_t>(c.tokens) * c.num_kv_heads * c.head_dim;
  const size_t q_values = kv_values * c.group;
  TQ_ASSIGN_OR_RETURN(const DeviceBuffer k, RandomTensor(kv_values, 1, stream));
  TQ_ASSIGN_OR_RETURN(const DeviceBuffer v, RandomTensor(kv_values, 2, stream));
  TQ_ASSIGN_OR_RETURN(const DeviceBuffer q, RandomTensor(q_values, 3, stream));
  TQ_ASSIGN_OR_RETURN(const DeviceBuffer out, DeviceBuffer::Allocate(q_values * sizeof(f16_t)));
  TQ_ASSIGN_OR_RETURN(const auto prefill,
                      DevicePrefill::Create(*cache,
                                            {.num_q_heads = c.num_kv_heads * c.group,
                                             .max_tokens = c.tokens,
                                             .plain_kernel = c.plain_kernel},
                                            stream));
  const DevicePrefillItem item = {0, c.tokens};
  TQ_RETURN_IF_ERROR(prefill->Plan({&item, 1}, stream));
  DevicePrefillTime time;
  time.is_hopper = prefill->kernel().kind == PrefillKernelKind::kHopper;
  const double tokens = c.tokens;
  time.operations = 4.0 * c.head_dim * c.num_kv_heads * c.group * tokens * (tokens + 1) / 2;
  TQ_ASSIGN_OR_RETURN(const std::vector<double> append_us, Times(c.runs, stream, [&] {
                        return cache->AppendPrompt(0, 0, c.tokens, k.data(), v.data(),
                                                   DeviceIo::kF16, stream);
                      }));
  TQ_ASSIGN_OR_RETURN(const std::vector<double> us, Times(c.runs, stream, [&] {
                        return prefill->Run(0, q.data(), out.data(), stream);
                      }));
  time.append_us = append_us[append_us.size() / 2];
  time.attention_us = us[us.size() / 2];
  time.lowest_us = us.front();
  time.highest_us = us.back();
  return time;
}

Result<int> RunDevicePrefillBench(const DevicePrefillPlan& plan, const OutputFlags& output) {
  TQ_ASSIGN_OR_RETURN(const CudaDeviceInfo info, GetCudaDeviceInfo());
  TQ_ASSIGN_OR_RETURN(const DeviceStream stream, DeviceStream::Create());
  nlohmann::ordered_json document = BenchDocument(LoadAverage());
  document["device"] = DeviceDocument(info);
  TextTable table({"kv", "head_dim", "group", "tokens", "us per\nlayer", "T operations\na second",
                   "append and seal\nus per layer", "of the\nattention"});
  ProgressBar progress(output.quiet || output.json);
  const ProgressSink sink = progress.sink();
  const size_t all =
      plan.formats.size() * plan.head_dims.size() * plan.groups.size() * plan.tokens.size();
  size_t done = 0;
  for (const int64_t head_dim : plan.head_dims) {
    for (const int64_t group : plan.groups) {
      for (const int64_t tokens : plan.tokens) {
        for (const HeadFormat& format : plan.formats) {
          const std::string name = PresetName(format);
          if (!ReportProgress(sink, done++, all, name)) {
            return Cancelled("the measurement was stopped");
          }
          const DevicePrefillCase c{.format = format,
                                    .head_dim = static_cast<int>(head_dim),
                                    .num_kv_heads = plan.num_kv_heads,
                                    .group = static_cast<int>(group),
                                    .tokens = static_cast<int>(tokens),
                                    .runs = plan.runs};
          const auto time = MeasureDevicePrefill(c, stream);
          if (!time.ok()) {
            return time.status().WithContext(
                StrCat(name, ", head_dim ", head_dim, ", group ", group, ", ", tokens, " tokens"));
          }
          const double share = time->append_us / time->attention_us;
          const double rate = time->operations / time->attention_us * 1e6;
          nlohmann::ordered_json r;
          r["name"] = name;
          r["peer"] = nullptr;
          r["settings"] = {{"head_dim", head_dim},
                           {"kv_heads", plan.num_kv_heads},
                           {"group", group},
                           {"tokens", tokens},
                           {"parts", 1},
                           {"recent_len", c.recent_len},
                           {"sink_len", c.sink_len},
                           {"runs", plan.runs},
                           {"filled_by", "random keys, values and queries, repeated"}};
          r["kernel"] = StrCat("INT8 tensor cores, ", time->is_hopper ? "wgmma" : "mma");
          r["us_per_layer"] = time->attention_us;
          r["lowest_us_per_layer"] = time->lowest_us;
          r["highest_us_per_layer"] = time->highest_us;
          r["append_and_seal_us_per_layer"] = time->append_us;
          r["append_and_seal_share"] = share;
          r["operations_per_second"] = rate;
          document["results"].push_back(std::move(r));
          table.Add({name, FormatCount(head_dim), FormatCount(group), FormatCount(tokens),
                     fmt::format("{:.1f}", time->attention_us), fmt::format("{:.0f}", rate / 1e12),
                     fmt::format("{:.1f}", time->append_us), fmt::format("{:.1f} %", 100 * share)});
        }
      }
    }
  }
  progress.Clear();
  if (output.json) {
    PrintOut(document.dump(2) + "\n");
    return kDone;
  }
  PrintOut(table.ToString());
  PrintOut(
      fmt::format("\n{} KV heads, {}, median of {} runs, whole prompts; masked pairs are not "
                  "counted as operations\n",
                  plan.num_kv_heads, info.name, plan.runs));
  return kDone;
}

}  // namespace tq::cli
