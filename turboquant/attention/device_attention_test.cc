#include "turboquant/attention/device_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "turboquant/attention/exact_attention_for_test.h"

namespace tq {
namespace {

using testing_util::Gaussian;

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
};

CacheConfig ConfigOf(const Shape& s) {
  CacheConfig c;
  c.num_layers = 1;
  c.num_kv_heads = static_cast<int>(s.presets.size());
  c.head_dim = s.head_dim;
  c.recent_len = s.recent_len;
  c.sink_len = s.sink_len;
  for (const char* preset : s.presets) c.formats.push_back(*ParsePreset(preset));
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

TEST(DeviceAttention, FormatsThatTheKernelLacksAreNamed) {
  for (const char* preset : {"k2v2", "k3v2", "k4v4", "k2v4", "k3v2-anchor1"}) {
    for (const int dim : {64, 128, 256}) {
      EXPECT_TRUE(CheckDeviceFormat(*ParsePreset(preset), dim, RecentType::kQ8).ok());
    }
  }
  for (const char* preset : {"k8v4", "f16", "k3v2-trellis", "k4v4-group32"}) {
    const Status s = CheckDeviceFormat(*ParsePreset(preset), 128, RecentType::kQ8);
    EXPECT_EQ(s.code(), StatusCode::kUnsupported);
    EXPECT_NE(s.message().find(StrCat(preset, " at head_dim 128; supported: k<a>v<b>")),
              std::string::npos)
        << s.message();
  }
  EXPECT_FALSE(CheckDeviceFormat(*ParsePreset("k4v4"), 96, RecentType::kQ8).ok());
  EXPECT_FALSE(CheckDeviceFormat(*ParsePreset("k4v4"), 64, RecentType::kF16).ok());
}

class OnDevice : public testing::Test {
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
        const std::vector<float> want = testing_util::ExactAttention(
            *cpu, sequences[static_cast<size_t>(i)], 0,
            {.num_q_heads = q_heads, .softcap = static_cast<float>(shape.softcap)}, rows, position,
            shape.sliding_window);
        const double distance = testing_util::RelativeDistance(got, want);
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

// Query digits keep 10 bits or more, weight digits 9 or more: about 1e-3 of the output for random
// data, where the output is an average that cancels. 4e-3 is stated.
constexpr double kBound = 4e-3;

TEST_F(OnDevice, EveryPairOfWidths) {
  for (const char* preset :
       {"k2v2", "k2v3", "k2v4", "k3v2", "k3v3", "k3v4", "k4v2", "k4v3", "k4v4"}) {
    Check({.presets = {preset}, .lengths = {1000}}, kBound, preset);
  }
}

TEST_F(OnDevice, EveryLengthAroundTheEdges) {
  for (const char* preset : {"k3v2", "k4v4"}) {
    Check({.presets = {preset},
           .lengths = {0,   1,   2,   31,  32,  33,  63,  64,  65,  127,  128,  129, 191,
                       192, 193, 255, 256, 257, 319, 320, 321, 511, 4095, 4096, 4097}},
          kBound, preset);
  }
}

TEST_F(OnDevice, EveryHeadDimAndGroup) {
  for (const int dim : {64, 128, 256}) {
    for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20}) {
      Check({.presets = {"k3v2", "k4v3"}, .head_dim = dim, .group = group, .lengths = {777, 130}},
            kBound, StrCat("head_dim ", dim, " group ", group));
    }
  }
}

TEST_F(OnDevice, CalibratedBooks) {
  for (const char* preset : {"k2v2", "k3v3", "k4v4"}) {
    Check({.presets = {preset}, .lengths = {700}, .calibrated = true}, kBound, preset);
  }
}

TEST_F(OnDevice, Centres) {
  for (const char* preset : {"k2v2", "k3v2", "k4v4"}) {
    for (const int dim : {64, 128, 256}) {
      for (const int group : {1, 8, 16}) {
        Check({.presets = {preset, preset},
               .head_dim = dim,
               .group = group,
               .lengths = {900, 65, 31},
               .center = 1},
              kBound, StrCat(preset, " head_dim ", dim, " group ", group));
      }
    }
  }
  // Longer than the keys, as biases are; turned only in part; with a scale on the angles.
  Check({.presets = {"k3v2"}, .group = 4, .lengths = {700}, .center = 30}, kBound, "long");
  Check({.presets = {"k3v2"}, .group = 4, .lengths = {700}, .center = 1, .rope_dim = 24}, kBound,
        "partial RoPE");
  Check({.presets = {"k3v2"}, .group = 4, .lengths = {700}, .center = 1, .attention_scale = 1.3f},
        kBound, "scaled");
  Check({.presets = {"k3v2"}, .lengths = {5000, 20}, .num_tokens = 3, .softcap = 4, .center = 1},
        kBound, "soft cap and three queries");
}

TEST_F(OnDevice, Anchors) {
  for (const char* preset : {"k2v2", "k3v2", "k4v4"}) {
    for (const int dim : {64, 128, 256}) {
      for (const int bits : {4, 8}) {
        for (const int anchors : {1, 2, 4}) {
          Check({.presets = {preset, preset},
                 .head_dim = dim,
                 .group = anchors == 4 ? 16 : 2 * anchors,
                 .lengths = {900, 400},
                 .center = anchors == 2 ? 1.f : 0.f,
                 .anchors = anchors,
                 .anchor_bits = bits},
                kBound,
                StrCat(preset, " head_dim ", dim, ", ", anchors, " anchors of ", bits, " bits"));
        }
      }
    }
  }
}

// Few launches, for the sanitizers.
TEST_F(OnDevice, OneOfEverything) {
  Check({.presets = {"k3v2", "k4v4"},
         .head_dim = 64,
         .group = 3,
         .lengths = {700, 130},
         .num_tokens = 2,
         .softcap = 5,
         .sliding_window = 400,
         .center = 1,
         .anchors = 2},
        kBound, "head_dim 64");
  Check({.presets = {"k3v2"}, .lengths = {700}, .center = 1, .anchors = 1}, kBound, "head_dim 128");
}

TEST_F(OnDevice, HeadsOfOneLayerMayDiffer) {
  Check({.presets = {"k2v2", "k4v4", "k3v2", "k4v2"}, .group = 4, .lengths = {3000, 64, 999}},
        kBound, "mixed");
}

TEST_F(OnDevice, UnevenBatches) {
  std::vector<int> lengths;
  for (int i = 0; i < 70; ++i) lengths.push_back(i * i * 37 % 1500);
  Check({.presets = {"k3v2", "k3v2"}, .head_dim = 64, .group = 3, .lengths = lengths}, kBound,
        "70 sequences");
  // So many units that several thread blocks share a multiprocessor.
  lengths.clear();
  for (int i = 0; i < 300; ++i) lengths.push_back(i * 37 % 290);
  Check({.presets = {"k3v2", "k4v4"}, .head_dim = 64, .group = 2, .lengths = lengths, .center = 1},
        kBound, "300 sequences");
}

TEST_F(OnDevice, SeveralQueriesOfASequence) {
  for (const int n : {2, 3, 5, 8}) {
    for (const int group : {1, 4, 8}) {
      Check({.presets = {"k4v4", "k3v2"},
             .group = group,
             .lengths = {1, 3, 8, 63, 64, 65, 66, 70, 71, 320, 321, 322, 700, 1026},
             .num_tokens = n},
            kBound, StrCat(n, " queries, group ", group));
    }
  }
}

TEST_F(OnDevice, SlidingWindows) {
  for (const int window : {1, 63, 64, 65, 200, 513}) {
    for (const int n : {1, 4}) {
      Check({.presets = {"k4v4", "k3v2"},
             .lengths = {5, 100, 400, 1030, 1088},
             .num_tokens = n,
             .sliding_window = window},
            kBound, StrCat("window ", window, ", ", n, " queries"));
    }
  }
}

TEST_F(OnDevice, Softcap) {
  Check({.presets = {"k4v4", "k3v2"}, .group = 2, .lengths = {50, 900}, .softcap = 3}, kBound,
        "softcap 3");
}

TEST_F(OnDevice, WindowsAndSinksOfOtherSizes) {
  for (const int recent : {0, 64, 256}) {
    for (const int sinks : {0, 64, 128}) {
      Check({.presets = {"k3v2"},
             .lengths = {64, 65, 130, 900},
             .recent_len = recent,
             .sink_len = sinks},
            kBound, StrCat("recent_len ", recent, ", sink_len ", sinks));
    }
  }
}

// The error stays within the bound that is reported, and pages are skipped at all; in a batch,
// where ranges are cut elsewhere, the same pages are.
TEST_F(OnDevice, SkippingStaysWithinItsBound) {
  for (const char* preset : {"k2v2", "k3v2", "k4v4", "k3v2-anchor1"}) {
    for (const int dim : {64, 128, 256}) {
      for (const int group : {1, 3, 8}) {
        const Shape shape{.presets = {preset, preset},
                          .head_dim = dim,
                          .group = group,
                          .lengths = {group == 1 ? 9000 : 2500},
                          .center = group == 3 ? 1.f : 0.f,
                          .anchors = ParsePreset(preset)->anchors};
        SCOPED_TRACE(StrCat(preset, " head_dim ", dim, " group ", group));
        for (const float eps : {1e-4f, 3e-2f, 0.3f}) {
          const SkipResult r = RunSkipping(shape, eps);
          double most = 0;
          for (size_t row = 0; row < r.out.size() / dim; ++row) {
            const double share = r.skipped[2 * row], bound = r.skipped[2 * row + 1];
            double error = 0, length = 0, other = 0;
            for (int c = 0; c < dim; ++c) {
              const double a = r.out[row * dim + c], b = r.plain[row * dim + c];
              const double o = r.in_batch[row * dim + c];
              error += (a - b) * (a - b), length += a * a, other += (a - o) * (a - o);
            }
            ASSERT_TRUE(share >= 0 && share < 1) << share;
            ASSERT_LE(std::sqrt(error),
                      share * std::sqrt(length) + bound + 4e-3 * std::sqrt(length))
                << "eps " << eps << ", row " << row << ", share " << share;
            // Another page would be a thousand times this.
            ASSERT_LE(std::sqrt(other), 1e-5 * std::sqrt(length) + 1e-6) << "row " << row;
            most = std::max(most, share);
          }
          if (eps == 0.3f) {
            EXPECT_GT(most, 0.001);
          }
        }
      }
    }
  }
}

// Few launches, for the sanitizers.
TEST_F(OnDevice, SkippingOfAFewShapes) {
  for (const int dim : {64, 128}) {
    const SkipResult r = RunSkipping({.presets = {"k3v2"},
                                      .head_dim = dim,
                                      .group = 2,
                                      .lengths = {1300},
                                      .center = 1,
                                      .anchors = 1},
                                     0.1f);
    for (const float s : r.skipped) EXPECT_TRUE(s >= 0 && std::isfinite(s)) << s;
  }
}

TEST_F(OnDevice, WithAnEpsThatNothingReachesNothingIsSkipped) {
  const SkipResult r = RunSkipping({.presets = {"k3v2"}, .lengths = {2000}}, 1e-30f);
  for (const float s : r.skipped) EXPECT_EQ(s, 0.f);
  EXPECT_LT(testing_util::RelativeDistance(r.out, r.plain), 1e-6);
}

TEST_F(OnDevice, SkippingIsRefusedWhereItHasNoKernel) {
  const CacheConfig config = ConfigOf({});
  auto device =
      DeviceCache::Create(config, {.max_tokens = 64, .open_slots = 2, .sealed_slots = 1}, *stream_);
  ASSERT_TRUE(device.ok());
  const auto create = [&](int q_heads, float eps) {
    return DeviceAttention::Create(**device, {.num_q_heads = q_heads, .v_skip = eps}, *stream_)
        .status();
  };
  EXPECT_TRUE(create(8, 0.01f).ok());
  EXPECT_EQ(create(9, 0.01f).code(), StatusCode::kUnsupported);
  EXPECT_NE(create(9, 0.01f).message().find("at most 8"), std::string::npos);
  EXPECT_EQ(create(1, 1.f).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(create(1, -0.1f).code(), StatusCode::kInvalidArgument);
}

// Long enough that many thread blocks share a unit.
TEST_F(OnDevice, LongSequences) {
  Check({.presets = {"k3v2"}, .group = 4, .lengths = {50000}}, kBound, "k3v2");
  Check({.presets = {"k4v4", "k2v2"}, .lengths = {20001, 30000}}, kBound, "two heads");
}

}  // namespace
}  // namespace tq
