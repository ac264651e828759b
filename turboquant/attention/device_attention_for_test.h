// What the tests of decode attention on a device share: shapes, and a run beside the float64
// reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "turboquant/attention/device_attention.h"
#include "turboquant/attention/exact_attention_for_test.h"

namespace tq::testing_util {

struct Shape {
  std::vector<const char*> presets = {"k3v2"};  // of the KV heads
  int head_dim = 128;
  int group = 1;
  std::vector<int> lengths = {1000};
  int num_tokens = 1;
  double softcap = 0;
  int sliding_window = 0;
  int recent_len = 128;
  int sink_len = 4;
  bool calibrated = false;
  float center = 0;  // size of the means of K; 0: no centre
  int rope_dim = 0;  // 0: all of head_dim
  float attention_scale = 1;
  int anchors = 0, anchor_bits = 4;
  RecentType recent = RecentType::kQ8;
  void (*change)(HeadFormat*) = nullptr;  // axes that presets have no name for
};

inline CacheConfig ConfigOf(const Shape& s) {
  CacheConfig c;
  c.num_layers = 1;
  c.num_kv_heads = static_cast<int>(s.presets.size());
  c.head_dim = s.head_dim;
  c.recent_len = s.recent_len;
  c.sink_len = s.sink_len;
  c.recent = s.recent;
  for (const char* preset : s.presets) {
    c.formats.push_back(*ParsePreset(preset));
    if (s.change != nullptr) s.change(&c.formats.back());
  }
  const int rope_dim = s.rope_dim > 0 ? s.rope_dim : s.head_dim;
  for (int i = 0; i < rope_dim / 2; ++i) {
    c.rope.inv_freq.push_back(
        std::pow(1e4f, -2.f * static_cast<float>(i) / static_cast<float>(rope_dim)));
  }
  c.rope.attention_scale = s.attention_scale;
  for (size_t h = 0; h < c.formats.size() && s.center > 0; ++h) {
    std::vector<float> mean =
        Gaussian(static_cast<size_t>(s.head_dim), 70 + static_cast<unsigned>(h));
    for (float& m : mean) m *= s.center;
    c.formats[h].k = WithCenter(c.formats[h].k, Center::kRopeMean);
    c.centers.push_back(MakeHeadCenter(mean, c.rope));
  }
  for (size_t h = 0; h < c.formats.size() && s.anchors > 0; ++h) {
    c.formats[h].anchors = s.anchors;
    c.formats[h].anchor_bits = s.anchor_bits;
    HeadTensors t;
    t.queries.means = {Gaussian(static_cast<size_t>(s.head_dim), 80 + static_cast<unsigned>(h))};
    c.tensors.push_back(t);
  }
  if (s.calibrated) {
    for (HeadFormat& f : c.formats) {
      f.k.codebook = f.v.codebook = Codebook::kCalibrated;
      HeadTensors t;
      for (auto [levels, bits] : {std::pair{&t.k_levels, f.k.bits}, {&t.v_levels, f.v.bits}}) {
        for (int i = 0; i < 1 << bits; ++i) {
          levels->push_back(3.2f * (static_cast<float>(i) + 0.7f) / static_cast<float>(1 << bits) -
                            1.5f);
        }
      }
      c.tensors.push_back(t);
    }
  }
  return c;
}

// NaN where floats of the last open block are not written yet: no kernel may use them.
inline void PoisonRowsBehind(const KvCache& cache, SeqId seq, int64_t length) {
  const int dim = cache.config().head_dim;
  const int used = static_cast<int>(length % kPageLen);
  if (used == 0) return;
  for (int h = 0; h < cache.config().num_kv_heads; ++h) {
    const KvCache::HeadLayout& l = cache.layout(0, h);
    auto* const slot =
        const_cast<std::byte*>(cache.OpenSlot(seq, length / kPageLen)) + l.open_offset;
    for (const Side side : {Side::kK, Side::kV}) {
      const ValueType type = side == Side::kK ? l.open.k_type : l.open.v_type;
      if (type == ValueType::kInt) continue;
      std::byte* const values = slot + (side == Side::kK ? l.open.k_values : l.open.v_values);
      const int lanes = NumLanes(side, dim);
      for (int t = used; t < kPageLen; ++t) {
        for (int c = 0; c < dim; ++c) {
          const int lane = side == Side::kK ? t : c, depth = side == Side::kK ? c : t;
          if (type == ValueType::kFP8) {
            std::memset(values + Int8Index(lane, depth, lanes), 0xff, 1);
          } else {
            std::memset(values + 2 * F16Index(lane, depth, lanes), 0xff, 2);
          }
        }
      }
    }
  }
}

class DeviceAttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!GetCudaDeviceInfo().ok()) GTEST_SKIP() << GetCudaDeviceInfo().status().ToString();
    stream_ = std::make_unique<DeviceStream>(*DeviceStream::Create());
  }

  // Output of the device over a batch, poisoned before; and the float64 reference beside it.
  void Check(const Shape& shape, double bound, const std::string& name) {
    SCOPED_TRACE(name);
    const CacheConfig config = ConfigOf(shape);
    auto cpu = *KvCache::Create(config);
    const int heads = config.num_kv_heads, dim = config.head_dim, q_heads = heads * shape.group;
    const size_t row = static_cast<size_t>(heads) * dim;
    const int batch = static_cast<int>(shape.lengths.size());
    const int longest = *std::max_element(shape.lengths.begin(), shape.lengths.end());
    const int64_t slots = batch * DivCeil(longest + 1, kPageLen) + 8;
    auto device = DeviceCache::Create(config,
                                      {.max_sequences = batch + 1,
                                       .max_tokens = longest + 1,
                                       .open_slots = slots,
                                       .sealed_slots = slots},
                                      *stream_);
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    (*device)->ShuffleFreeSlots(7);
    std::vector<SeqId> sequences;
    for (int i = 0; i < batch; ++i) {
      const int length = shape.lengths[static_cast<size_t>(i)];
      const SeqId seq = cpu->NewSequence();
      sequences.push_back(seq);
      if (length > 0) {
        const std::vector<float> k = Gaussian(row * length, 11 + i),
                                 v = Gaussian(row * length, 91 + i);
        ASSERT_TRUE(cpu->BeginAppend(seq, length).ok());
        ASSERT_TRUE(cpu->AppendLayer(seq, 0, k.data(), v.data(), pool_).ok());
        ASSERT_TRUE(cpu->CommitAppend(seq).ok());
        PoisonRowsBehind(*cpu, seq, length);
      }
      // Sequence i of the batch is not sequence i of the cache.
      const Status s = (*device)->Import(*cpu, seq, batch - i, *stream_);
      ASSERT_TRUE(s.ok()) << s.ToString();
    }
    const DeviceAttentionConfig attention_config{.num_q_heads = q_heads,
                                                 .num_tokens = shape.num_tokens,
                                                 .max_batch = batch,
                                                 .io = DeviceIo::kF32,
                                                 .softcap = static_cast<float>(shape.softcap),
                                                 .sliding_window = shape.sliding_window};
    auto attention = DeviceAttention::Create(**device, attention_config, *stream_);
    ASSERT_TRUE(attention.ok()) << attention.status().ToString();
    const size_t values = static_cast<size_t>(batch) * shape.num_tokens * q_heads * dim;
    const std::vector<float> q = Gaussian(values, 5);
    const auto q_device = *DeviceBuffer::Allocate(values * 4);
    const auto out_device = *DeviceBuffer::Allocate(values * 4);
    const auto ids_device = *DeviceBuffer::Allocate(static_cast<size_t>(batch) * 4);
    std::vector<int32_t> ids;
    for (int i = 0; i < batch; ++i) ids.push_back(batch - i);
    ASSERT_TRUE(q_device.Upload(q.data(), values * 4, 0, *stream_).ok());
    ASSERT_TRUE(ids_device.Upload(ids.data(), ids.size() * 4, 0, *stream_).ok());
    std::vector<float> out(values), again(values);
    for (std::vector<float>* to : {&out, &again}) {
      ASSERT_TRUE(out_device.Fill(0xff, *stream_).ok());  // NaN
      Status s = (*attention)
                     ->Run(0, ids_device.as<const int32_t>(), batch, q_device.data(),
                           out_device.data(), *stream_);
      ASSERT_TRUE(s.ok()) << s.ToString();
      ASSERT_TRUE(out_device.Download(to->data(), values * 4, 0, *stream_).ok());
      s = stream_->Synchronize();
      ASSERT_TRUE(s.ok()) << s.ToString();
    }
    for (size_t i = 0; i < values; ++i) ASSERT_FALSE(std::isnan(out[i])) << "not written: " << i;
    EXPECT_EQ(out, again) << "two runs differ";
    for (int i = 0; i < batch; ++i) {
      for (int t = 0; t < shape.num_tokens; ++t) {
        const int64_t position = shape.lengths[static_cast<size_t>(i)] - shape.num_tokens + t;
        const size_t at = (static_cast<size_t>(i) * shape.num_tokens + t) * q_heads * dim;
        const std::vector<float> got(out.begin() + at, out.begin() + at + q_heads * dim);
        if (position < 0) {
          EXPECT_EQ(got, std::vector<float>(got.size(), 0.f)) << "sequence " << i << " query " << t;
          continue;
        }
        const std::vector<float> rows(q.begin() + at, q.begin() + at + q_heads * dim);
        const std::vector<float> want =
            ExactAttention(*cpu, sequences[static_cast<size_t>(i)], 0,
                           {.num_q_heads = q_heads, .softcap = static_cast<float>(shape.softcap)},
                           rows, position, shape.sliding_window);
        const double distance = RelativeDistance(got, want);
        worst_ = std::max(worst_, distance);
        EXPECT_LT(distance, bound)
            << "sequence " << i << " of " << shape.lengths[static_cast<size_t>(i)]
            << " tokens, query " << t;
      }
    }
  }
  // One sequence with keys of unlike sizes, so that few pages have most of the mass; its output
  // with and without skipping, in a batch behind another one, and what was skipped.
  struct SkipResult {
    std::vector<float> plain, out, in_batch, skipped;
  };
  SkipResult RunSkipping(const Shape& shape, float v_skip) {
    const CacheConfig config = ConfigOf(shape);
    auto cpu = *KvCache::Create(config);
    const int heads = config.num_kv_heads, dim = config.head_dim, length = shape.lengths[0];
    const size_t row = static_cast<size_t>(heads) * dim;
    const size_t values = row * shape.group * shape.num_tokens;
    const SeqId seq = cpu->NewSequence();
    std::vector<float> k = Gaussian(row * length, 11);
    const std::vector<float> v = Gaussian(row * length, 91);
    for (int t = 0; t < length; ++t) {
      const float size = t / kPageLen % 7 == 3 ? 1.5f : 0.1f;
      for (size_t i = 0; i < row; ++i) k[t * row + i] *= size;
    }
    EXPECT_TRUE(cpu->BeginAppend(seq, length).ok());
    EXPECT_TRUE(cpu->AppendLayer(seq, 0, k.data(), v.data(), pool_).ok());
    EXPECT_TRUE(cpu->CommitAppend(seq).ok());
    const int64_t slots = 2 * DivCeil(length + 1, kPageLen) + 8;
    auto device = *DeviceCache::Create(
        config,
        {.max_sequences = 2, .max_tokens = length + 1, .open_slots = slots, .sealed_slots = slots},
        *stream_);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(device->Import(*cpu, seq, i, *stream_).ok());
    const std::vector<float> one = Gaussian(values, 5);
    std::vector<float> q = one;
    q.insert(q.end(), one.begin(), one.end());
    const auto q_device = *DeviceBuffer::Allocate(2 * values * 4);
    const auto out_device = *DeviceBuffer::Allocate(2 * values * 4);
    const auto skipped_device = *DeviceBuffer::Allocate(2 * values / dim * 8);
    const auto ids_device = *DeviceBuffer::Allocate(8);
    const int32_t ids[] = {0, 1};
    EXPECT_TRUE(q_device.Upload(q.data(), 2 * values * 4, 0, *stream_).ok());
    EXPECT_TRUE(ids_device.Upload(ids, 8, 0, *stream_).ok());
    const auto run = [&](float eps, int batch, std::vector<float>* out,
                         std::vector<float>* skipped) {
      auto attention = DeviceAttention::Create(*device,
                                               {.num_q_heads = heads * shape.group,
                                                .num_tokens = shape.num_tokens,
                                                .max_batch = batch,
                                                .io = DeviceIo::kF32,
                                                .v_skip = eps},
                                               *stream_);
      ASSERT_TRUE(attention.ok()) << attention.status().ToString();
      ASSERT_TRUE(out_device.Fill(0xff, *stream_).ok());
      ASSERT_TRUE(skipped_device.Fill(0xff, *stream_).ok());
      const Status s =
          (*attention)
              ->Run(0, ids_device.as<const int32_t>(), batch, q_device.data(), out_device.data(),
                    *stream_, eps > 0 ? skipped_device.as<float>() : nullptr);
      ASSERT_TRUE(s.ok()) << s.ToString();
      out->resize(batch * values);
      skipped->resize(batch * values / dim * 2);
      ASSERT_TRUE(out_device.Download(out->data(), out->size() * 4, 0, *stream_).ok());
      ASSERT_TRUE(skipped_device.Download(skipped->data(), skipped->size() * 4, 0, *stream_).ok());
      const Status done = stream_->Synchronize();
      ASSERT_TRUE(done.ok()) << done.ToString();
    };
    SkipResult r;
    std::vector<float> ignored, both;
    run(0, 1, &r.plain, &ignored);
    run(v_skip, 1, &r.out, &r.skipped);
    run(v_skip, 2, &r.in_batch, &both);
    r.in_batch.resize(values);
    both.resize(r.skipped.size());
    for (size_t i = 0; i < both.size(); ++i) EXPECT_NEAR(both[i], r.skipped[i], 1e-5) << i;
    return r;
  }

  void TearDown() override { RecordProperty("worst_distance", std::to_string(worst_)); }

  std::unique_ptr<DeviceStream> stream_;
  ThreadPool pool_{4};
  double worst_ = 0;
};

}  // namespace tq::testing_util
