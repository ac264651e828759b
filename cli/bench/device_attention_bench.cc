#include "cli/bench/device_attention_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/bench/device_read.h"
#include "cli/bench/graph_times.h"
#include "cli/bench/measure.h"
#include "cli/table.h"

namespace tq::cli {
namespace {

// Encoded blocks that all others are copies of.
constexpr int64_t kSourceBlocks = 12;

std::vector<float> Normal(size_t n, uint64_t state) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; i += 2) {  // Box and Muller
    const double u = (static_cast<double>(SplitMix64(state) >> 11) + 1) * 0x1p-53;
    const double angle = 6.283185307179586 * static_cast<double>(SplitMix64(state) >> 11) * 0x1p-53;
    const double r = std::sqrt(-2 * std::log(u));
    x[i] = static_cast<float>(r * std::cos(angle));
    if (i + 1 < n) x[i + 1] = static_cast<float>(r * std::sin(angle));
  }
  return x;
}

CacheConfig ConfigOf(const DeviceAttentionCase& c, int layers) {
  CacheConfig config;
  config.num_layers = layers;
  config.num_kv_heads = c.num_kv_heads;
  config.head_dim = c.head_dim;
  config.recent_len = c.recent_len;
  config.sink_len = c.sink_len;
  for (int i = 0; i < layers * c.num_kv_heads; ++i) {
    config.formats.push_back(c.formats[static_cast<size_t>(i % c.num_kv_heads) % c.formats.size()]);
  }
  for (int i = 0; i < c.head_dim / 2; ++i) {
    config.rope.inv_freq.push_back(
        std::pow(1e4f, -2.f * static_cast<float>(i) / static_cast<float>(c.head_dim)));
  }
  HeadTensors tensors;
  tensors.queries.means = {Normal(static_cast<size_t>(c.head_dim), 4)};
  for (HeadFormat& f : config.formats) {
    if (c.center) {
      f.k = WithCenter(f.k, Center::kRopeMean);
      config.centers.push_back(
          MakeHeadCenter(Normal(static_cast<size_t>(c.head_dim), 5), config.rope));
    }
    if (f.anchors > 0) config.tensors.resize(config.formats.size(), tensors);
  }
  return config;
}

// What the format's products run on.
const char* TensorCoresOf(const HeadFormat& f) {
  if (f.k.is_float() != f.v.is_float()) return "INT8 and 16-bit tensor cores";
  return f.k.is_float() ? "16-bit tensor cores" : "INT8 tensor cores";
}

struct Forms {
  int64_t open = 0, sealed = 0;  // blocks of one sequence
};
Forms FormsOf(const PrecisionRule& rule, int64_t depth) {
  Forms forms;
  const int64_t last = (depth - 1) / kPageLen;
  for (int64_t b = 0; b <= last; ++b) ++(rule.ReadsOpen(b, last) ? forms.open : forms.sealed);
  return forms;
}

// A sequence of random tokens goes through the encoder into the first slots of all layers.
Status FillSlots(DeviceCache* cache, const Forms& one, ThreadPool& pool,
                 const DeviceStream& stream) {
  const CacheConfig& config = cache->config();
  TQ_ASSIGN_OR_RETURN(const auto cpu, KvCache::Create(config));
  const int64_t sealed = std::min(kSourceBlocks, one.sealed);
  const int n = static_cast<int>((one.open + sealed) * kPageLen);
  const SeqId seq = cpu->NewSequence();
  TQ_RETURN_IF_ERROR(cpu->BeginAppend(seq, n));
  const size_t values = static_cast<size_t>(n) * config.num_kv_heads * config.head_dim;
  const std::vector<float> k = Normal(values, 1), v = Normal(values, 2);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    TQ_RETURN_IF_ERROR(cpu->AppendLayer(seq, layer, k.data(), v.data(), pool));
  }
  TQ_RETURN_IF_ERROR(cpu->CommitAppend(seq));
  TQ_RETURN_IF_ERROR(cache->Import(*cpu, seq, 0, stream));
  TQ_RETURN_IF_ERROR(cache->RepeatSlots(one.open, std::max<int64_t>(1, sealed), stream));
  TQ_RETURN_IF_ERROR(cache->Clear(0, stream));
  cache->ShuffleFreeSlots(3);
  return OkStatus();
}

}  // namespace

nlohmann::ordered_json DeviceDocument(const CudaDeviceInfo& info) {
  const auto version = [](int v) { return StrCat(v / 1000, ".", v % 1000 / 10); };
  return {{"name", info.name},
          {"compute", StrCat(info.compute_major, ".", info.compute_minor)},
          {"multiprocessors", info.num_multiprocessors},
          {"memory_bytes", info.memory_bytes},
          {"l2_bytes", info.l2_bytes},
          {"driver_cuda", version(info.driver_version)},
          {"runtime_cuda", version(info.runtime_version)}};
}

Result<DeviceAttentionTime> MeasureDeviceAttention(const DeviceAttentionCase& c, ThreadPool& pool,
                                                   const DeviceStream& stream) {
  TQ_ASSIGN_OR_RETURN(const CudaDeviceInfo info, GetCudaDeviceInfo());
  DeviceAttentionTime time;
  Forms one;
  {
    TQ_ASSIGN_OR_RETURN(const auto schema, KvCache::Create(ConfigOf(c, 1)));
    one = FormsOf(schema->rule(), c.depth);
    time.bytes_per_layer = static_cast<size_t>(c.batch) *
                           (static_cast<size_t>(one.sealed) * schema->sealed_slot_bytes() +
                            static_cast<size_t>(one.open) * schema->open_slot_bytes());
  }
  time.layers = static_cast<int>(
      std::clamp<size_t>(DivCeil<size_t>(6 * info.l2_bytes, time.bytes_per_layer), 2, 32));
  // The source sequence may need a little more than one of the batch; a block that just left the
  // window is open too.
  DeviceCacheOptions options;
  options.max_sequences = c.batch;
  options.max_tokens =
      std::max<int64_t>(c.depth + kPageLen + 1, (one.open + kSourceBlocks) * kPageLen);
  options.open_slots = (c.batch + 1) * (one.open + 2);
  options.sealed_slots = std::max<int64_t>(c.batch * (one.sealed + 2), kSourceBlocks + 2);
  TQ_ASSIGN_OR_RETURN(const auto cache,
                      DeviceCache::Create(ConfigOf(c, time.layers), options, stream));
  TQ_RETURN_IF_ERROR(FillSlots(cache.get(), one, pool, stream));
  std::vector<int32_t> ids;
  for (int i = 0; i < c.batch; ++i) {
    TQ_RETURN_IF_ERROR(cache->Claim(i, c.depth, stream));
    ids.push_back(i);
  }
  const DeviceAttentionConfig config{.num_q_heads = c.num_kv_heads * c.group,
                                     .num_tokens = c.num_tokens,
                                     .max_batch = c.batch,
                                     .io = DeviceIo::kF16,
                                     .v_skip = c.v_skip};
  TQ_ASSIGN_OR_RETURN(const auto attention, DeviceAttention::Create(*cache, config, stream));
  time.blocks_per_multiprocessor = attention->kernel().blocks_per_multiprocessor;
  time.warps_per_block = attention->kernel().warps_per_block;
  time.rows = attention->rows();
  const size_t values =
      static_cast<size_t>(c.batch) * c.num_tokens * c.num_kv_heads * c.group * c.head_dim;
  std::vector<f16_t> q;
  for (const float x : Normal(values, 3)) q.push_back(F16FromF32(x));
  TQ_ASSIGN_OR_RETURN(const auto q_device, DeviceBuffer::Allocate(values * sizeof(f16_t)));
  TQ_ASSIGN_OR_RETURN(const auto out, DeviceBuffer::Allocate(values * sizeof(f16_t)));
  TQ_ASSIGN_OR_RETURN(const auto ids_device, DeviceBuffer::Allocate(ids.size() * sizeof(int32_t)));
  TQ_RETURN_IF_ERROR(q_device.Upload(q.data(), values * sizeof(f16_t), 0, stream));
  TQ_RETURN_IF_ERROR(ids_device.Upload(ids.data(), ids.size() * sizeof(int32_t), 0, stream));
  TQ_RETURN_IF_ERROR(stream.Synchronize());
  const auto attend = [&](int layer) {
    return attention->Run(layer, ids_device.as<const int32_t>(), c.batch, q_device.data(),
                          out.data(), stream);
  };
  TQ_ASSIGN_OR_RETURN(const std::vector<double> us,
                      GraphTimes(time.layers, c.runs, stream, attend));
  time.us_per_layer = us[us.size() / 2];
  time.lowest_us = us.front();
  time.highest_us = us.back();
  // Appending a token of each sequence; the queries serve as its keys and values.
  if (c.num_tokens == 1 && cache->CheckAppend().ok()) {
    const auto append = [&](int layer) {
      return cache->Append(layer, ids_device.as<const int32_t>(), c.batch, 1, q_device.data(),
                           q_device.data(), DeviceIo::kF16, stream);
    };
    const int64_t full = RoundUp<int64_t>(c.depth, kPageLen);
    for (const int64_t length : {full, full + 1}) {  // the last of a block, the first of the next
      for (int i = 0; i < c.batch; ++i) TQ_RETURN_IF_ERROR(cache->Claim(i, length, stream));
      TQ_ASSIGN_OR_RETURN(const std::vector<double> append_us,
                          GraphTimes(time.layers, c.runs, stream, append));
      (length == full ? time.append_us : time.append_and_seal_us) = append_us[append_us.size() / 2];
      TQ_ASSIGN_OR_RETURN(const std::vector<double> step_us,
                          GraphTimes(time.layers, c.runs, stream, [&](int layer) -> Status {
                            TQ_RETURN_IF_ERROR(append(layer));
                            return attend(layer);
                          }));
      (length == full ? time.step_us : time.step_and_seal_us) = step_us[step_us.size() / 2];
    }
  }
  return time;
}

Result<int> RunDeviceAttentionBench(const DeviceAttentionPlan& plan, const OutputFlags& output) {
  TQ_ASSIGN_OR_RETURN(const CudaDeviceInfo info, GetCudaDeviceInfo());
  TQ_ASSIGN_OR_RETURN(const DeviceStream stream, DeviceStream::Create());
  ThreadPool pool(0);
  // Before anything else is on the card, and of the size of a large cache.
  const size_t read_bytes = std::min(size_t{8} << 30, info.free_bytes / 2);
  TQ_ASSIGN_OR_RETURN(const double read, MeasureDeviceRead(read_bytes, 9, stream));
  nlohmann::ordered_json document = BenchDocument(LoadAverage());
  document["device"] = DeviceDocument(info);
  document["read_bytes_per_second"] = read;
  document["read_bandwidth_measured"] = true;
  TextTable table(
      {"kv", "head_dim", "group", "batch", "depth", "us per\nlayer", "GB/s", "of read\nbandwidth"});
  ProgressBar progress(output.quiet || output.json);
  const ProgressSink sink = progress.sink();
  const size_t all = plan.formats.size() * plan.head_dims.size() * plan.groups.size() *
                     plan.batches.size() * plan.depths.size();
  size_t done = 0;
  for (const int64_t head_dim : plan.head_dims) {
    for (const int64_t group : plan.groups) {
      for (const int64_t depth : plan.depths) {
        for (const int64_t batch : plan.batches) {
          for (const HeadFormat& format : plan.formats) {
            const std::string name = PresetName(format);
            if (!ReportProgress(sink, done++, all, name)) {
              return Cancelled("the measurement was stopped");
            }
            DeviceAttentionCase c;
            c.formats = {format};
            c.head_dim = static_cast<int>(head_dim);
            c.num_kv_heads = plan.num_kv_heads;
            c.group = static_cast<int>(group);
            c.batch = static_cast<int>(batch);
            c.depth = depth;
            c.runs = plan.runs;
            c.center = plan.center;
            c.v_skip = plan.v_skip;
            const auto time = MeasureDeviceAttention(c, pool, stream);
            if (!time.ok()) {
              return time.status().WithContext(StrCat(name, ", head_dim ", head_dim, ", group ",
                                                      group, ", batch ", batch, ", depth ", depth));
            }
            const double rate =
                static_cast<double>(time->bytes_per_layer) / time->us_per_layer * 1e6;
            nlohmann::ordered_json r;
            r["name"] = name;
            r["peer"] = nullptr;
            r["settings"] = {{"head_dim", head_dim},
                             {"kv_heads", plan.num_kv_heads},
                             {"group", group},
                             {"batch", batch},
                             {"depth", depth},
                             {"recent_len", c.recent_len},
                             {"sink_len", c.sink_len},
                             {"center", c.center},
                             {"v_skip", c.v_skip},
                             {"runs", plan.runs},
                             {"layers", time->layers},
                             {"launch", "CUDA graph of all layers"},
                             {"filled_by", "repeated blocks behind a shuffled page table"}};
            r["kernel"] = StrCat(TensorCoresOf(format), ", ", time->rows, " rows, ",
                                 time->blocks_per_multiprocessor, " x ", time->warps_per_block,
                                 " warps a multiprocessor");
            r["us_per_layer"] = time->us_per_layer;
            r["lowest_us_per_layer"] = time->lowest_us;
            r["highest_us_per_layer"] = time->highest_us;
            if (time->append_us > 0) {
              r["append_us_per_layer"] = time->append_us;
              r["append_and_seal_us_per_layer"] = time->append_and_seal_us;
              r["step_us_per_layer"] = time->step_us;
              r["step_and_seal_us_per_layer"] = time->step_and_seal_us;
            }
            r["bytes_per_layer"] = time->bytes_per_layer;
            r["bytes_per_second"] = rate;
            r["share_of_bandwidth"] = rate / read;
            document["results"].push_back(std::move(r));
            table.Add({name, FormatCount(head_dim), FormatCount(group), FormatCount(batch),
                       FormatCount(depth), fmt::format("{:.1f}", time->us_per_layer),
                       fmt::format("{:.0f}", rate / 1e9),
                       fmt::format("{:.0f} %", 100 * rate / read)});
          }
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
  PrintOut(fmt::format(
      "\n{} KV heads, {}, median of {} runs, replayed from a graph; read bandwidth {:.0f} GB/s "
      "(measured)\n",
      plan.num_kv_heads, info.name, plan.runs, read / 1e9));
  return kDone;
}

}  // namespace tq::cli
