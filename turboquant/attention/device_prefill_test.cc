// Prefill on a device against the float64 reference, and that a cut of a prompt changes no bit.
#include "turboquant/attention/device_prefill.h"

#include <gtest/gtest.h>

#include "turboquant/attention/device_attention_for_test.h"

namespace tq {
namespace {

using testing_util::ConfigOf;
using testing_util::ExactAttention;
using testing_util::Gaussian;
using testing_util::RelativeDistance;
using testing_util::Shape;

// Queries and weights of 8 bits: 0.9 % in the mean, a sixth of what 4-bit codes cause at the worst
// (docs/decisions/prefill-in-integers.md).
constexpr double kBound = 2e-2;

// Lengths of the sequences of a batch are the shape's; each is cut into parts of these sizes, again
// and again until it ends. All its tokens are queries.
struct PrefillRun {
  Shape shape;
  std::vector<int> parts = {1 << 20};
  DeviceIo io = DeviceIo::kF32;  // of keys, values, queries and outputs
  bool plain_kernel = false;
};

// As numbers of `io` have it.
float Rounded(float x, DeviceIo io) {
  return io == DeviceIo::kF32   ? x
         : io == DeviceIo::kF16 ? F32FromF16(F16FromF32(x))
                                : F32FromBF16(BF16FromF32(x));
}

class PrefillOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!GetCudaDeviceInfo().ok()) GTEST_SKIP() << GetCudaDeviceInfo().status().ToString();
    stream_ = std::make_unique<DeviceStream>(*DeviceStream::Create());
  }

  static std::vector<float> RowsOf(const PrefillRun& run, int i, int group, unsigned seed) {
    const Shape& s = run.shape;
    const size_t row = s.presets.size() * static_cast<size_t>(group * s.head_dim);
    std::vector<float> rows =
        Gaussian(row * static_cast<size_t>(s.lengths[static_cast<size_t>(i)]), seed + i);
    for (float& x : rows) x = Rounded(x, run.io);
    return rows;
  }
  static std::vector<float> KeysOf(const PrefillRun& run, int i, unsigned seed) {
    return RowsOf(run, i, 1, seed);
  }
  static std::vector<float> QueriesOf(const PrefillRun& run, int i) {
    return RowsOf(run, i, run.shape.group, 300);
  }
  // `count` numbers as they lie in device memory.
  static std::vector<std::byte> ToIo(const float* from, size_t count, DeviceIo io) {
    std::vector<std::byte> bytes(count * SizeOf(io));
    for (size_t i = 0; i < count; ++i) {
      if (io == DeviceIo::kF32) {
        std::memcpy(&bytes[4 * i], from + i, 4);
      } else {
        const uint16_t half = io == DeviceIo::kF16 ? F16FromF32(from[i]) : BF16FromF32(from[i]);
        std::memcpy(&bytes[2 * i], &half, 2);
      }
    }
    return bytes;
  }
  static float FromIo(const std::byte* bytes, size_t i, DeviceIo io) {
    float x;
    uint16_t half;
    if (io == DeviceIo::kF32) return std::memcpy(&x, bytes + 4 * i, 4), x;
    std::memcpy(&half, bytes + 2 * i, 2);
    return io == DeviceIo::kF16 ? F32FromF16(half) : F32FromBF16(half);
  }
  static size_t SizeOf(DeviceIo io) { return io == DeviceIo::kF32 ? 4 : 2; }

  // Outputs of all queries of every sequence.
  std::vector<std::vector<float>> Run(const PrefillRun& run) {
    const Shape& shape = run.shape;
    const CacheConfig config = ConfigOf(shape);
    const int dim = config.head_dim, heads = config.num_kv_heads, q_heads = heads * shape.group;
    const int batch = static_cast<int>(shape.lengths.size());
    const int longest = *std::max_element(shape.lengths.begin(), shape.lengths.end());
    const int64_t slots = batch * (DivCeil(longest, kPageLen) + 1) + 8;
    auto device = *DeviceCache::Create(config,
                                       {.max_sequences = batch + 1,
                                        .max_tokens = longest,
                                        .open_slots = slots,
                                        .sealed_slots = slots},
                                       *stream_);
    device->ShuffleFreeSlots(7);
    auto prefill = DevicePrefill::Create(*device,
                                         {.num_q_heads = q_heads,
                                          .max_tokens = batch * longest,
                                          .max_items = batch,
                                          .io = run.io,
                                          .softcap = static_cast<float>(shape.softcap),
                                          .sliding_window = shape.sliding_window,
                                          .plain_kernel = run.plain_kernel},
                                         *stream_);
    EXPECT_TRUE(prefill.ok()) << prefill.status().ToString();
    if (!prefill.ok()) return {};
    std::vector<std::vector<float>> outs(static_cast<size_t>(batch));
    const size_t values = static_cast<size_t>(q_heads) * dim, kv_values = values / shape.group;
    const size_t row = values * SizeOf(run.io), kv_row = kv_values * SizeOf(run.io);
    std::vector<std::vector<float>> q, k, v;
    for (int i = 0; i < batch; ++i) {
      q.push_back(QueriesOf(run, i));
      k.push_back(KeysOf(run, i, 11));
      v.push_back(KeysOf(run, i, 91));
    }
    const size_t most = static_cast<size_t>(batch) * longest;
    const auto q_device = *DeviceBuffer::Allocate(most * row);
    const auto out_device = *DeviceBuffer::Allocate(most * row);
    const auto k_device = *DeviceBuffer::Allocate(most * kv_row);
    const auto v_device = *DeviceBuffer::Allocate(most * kv_row);
    const auto id_device = *DeviceBuffer::Allocate(4);
    const auto ok = [](const Status& s) { ASSERT_TRUE(s.ok()) << s.ToString(); };
    for (size_t part = 0, done = 1; done > 0; ++part) {
      done = 0;
      std::vector<DevicePrefillItem> items;
      std::vector<size_t> firsts;
      for (int i = 0; i < batch; ++i) {
        const int id = batch - i;  // sequence i of the batch is not sequence i of the cache
        const auto first = static_cast<size_t>(device->length(id));
        const int n =
            std::min<int>(run.parts[part % run.parts.size()],
                          shape.lengths[static_cast<size_t>(i)] - static_cast<int>(first));
        if (n <= 0) continue;
        ok(device->Reserve(id, n, *stream_));
        ok(id_device.Upload(&id, 4, 0, *stream_));
        ok(device->Advance(id_device.as<int32_t>(), 1, n, *stream_));
        const auto upload = [&](const DeviceBuffer& to, const std::vector<float>& from, size_t each,
                                size_t offset) {
          const std::vector<std::byte> bytes = ToIo(&from[first * each], n * each, run.io);
          ok(to.Upload(bytes.data(), bytes.size(), offset, *stream_));
          ok(stream_->Synchronize());
        };
        upload(k_device, k[i], kv_values, 0);
        upload(v_device, v[i], kv_values, 0);
        ok(device->AppendPrompt(0, id, n, k_device.data(), v_device.data(), run.io, *stream_));
        upload(q_device, q[i], values, done * row);
        items.push_back({id, n});
        done += static_cast<size_t>(n);
      }
      if (items.empty()) break;
      ok(out_device.Fill(0xff, *stream_));  // NaN
      ok((*prefill)->Plan(items, *stream_));
      ok((*prefill)->Run(0, q_device.data(), out_device.data(), *stream_));
      std::vector<std::byte> out(done * row);
      ok(out_device.Download(out.data(), out.size(), 0, *stream_));
      ok(stream_->Synchronize());
      size_t at = 0;
      for (const DevicePrefillItem& item : items) {
        std::vector<float>& to = outs[static_cast<size_t>(batch - item.sequence)];
        const size_t count = static_cast<size_t>(item.num_tokens) * values;
        for (size_t i = 0; i < count; ++i) to.push_back(FromIo(out.data(), at + i, run.io));
        at += count;
      }
    }
    return outs;
  }

  // Every `stride`-th query, and the last, against the float64 reference.
  void Check(const PrefillRun& run, double bound, int stride, const std::string& name) {
    SCOPED_TRACE(name);
    const Shape& shape = run.shape;
    const std::vector<std::vector<float>> outs = Run(run);
    ASSERT_EQ(outs.size(), shape.lengths.size());
    auto cpu = *KvCache::Create(ConfigOf(shape));
    const int q_heads = static_cast<int>(shape.presets.size()) * shape.group;
    const int64_t row = q_heads * shape.head_dim;
    for (size_t i = 0; i < outs.size(); ++i) {
      const int length = shape.lengths[i];
      ASSERT_EQ(outs[i].size(), static_cast<size_t>(length * row));
      for (const float x : outs[i]) ASSERT_FALSE(std::isnan(x)) << "not written";
      const SeqId seq = cpu->NewSequence();
      ASSERT_TRUE(cpu->BeginAppend(seq, length).ok());
      ASSERT_TRUE(cpu->AppendLayer(seq, 0, KeysOf(run, static_cast<int>(i), 11).data(),
                                   KeysOf(run, static_cast<int>(i), 91).data(), pool_)
                      .ok());
      const std::vector<float> q = QueriesOf(run, static_cast<int>(i));
      for (int position = length - 1; position >= 0; position -= stride) {
        const auto at = position * row;
        const std::vector<float> want = ExactAttention(
            *cpu, seq, 0, {.num_q_heads = q_heads, .softcap = static_cast<float>(shape.softcap)},
            {q.begin() + at, q.begin() + at + row}, position, shape.sliding_window);
        const double distance =
            RelativeDistance({outs[i].begin() + at, outs[i].begin() + at + row}, want);
        worst_ = std::max(worst_, distance);
        EXPECT_LT(distance, bound) << "sequence " << i << ", position " << position;
      }
      ASSERT_TRUE(cpu->AbortAppend(seq).ok());
    }
  }
  void TearDown() override { RecordProperty("worst_distance", std::to_string(worst_)); }

  std::unique_ptr<DeviceStream> stream_;
  ThreadPool pool_{4};
  double worst_ = 0;
};

TEST_F(PrefillOnDevice, EveryPairOfWidths) {
  for (const char* preset : {"k2v2", "k3v2", "k2v4", "k4v3", "k4v4"}) {
    Check({{.presets = {preset}, .head_dim = 64, .lengths = {330}}}, kBound, 41, preset);
  }
}

TEST_F(PrefillOnDevice, PartsGiveTheSameBits) {
  PrefillRun run{{.presets = {"k3v2", "k4v4"}, .head_dim = 64, .group = 2, .lengths = {390, 77}}};
  const auto whole = Run(run);
  run.parts = {100, 3, 64, 190};
  EXPECT_EQ(Run(run), whole);
  run.shape.lengths = {390};  // the same sequence, alone
  ASSERT_FALSE(whole.empty());
  EXPECT_EQ(Run(run).at(0), whole[0]);
}

TEST_F(PrefillOnDevice, HeadDimensionsAndGroups) {
  for (const int dim : {64, 128, 256}) {
    for (const int group : {1, 3, 4, 8}) {
      Check({{.presets = {"k3v2", "k4v4"}, .head_dim = dim, .group = group, .lengths = {700, 65}}},
            kBound, 53, StrCat("head_dim ", dim, " group ", group));
    }
  }
}

TEST_F(PrefillOnDevice, EveryLength) {
  for (const int length : {1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 449}) {
    Check({{.lengths = {length}}}, kBound, 17, StrCat(length));
  }
}

TEST_F(PrefillOnDevice, WindowsSinksAndSoftCaps) {
  for (const int recent : {0, 64, 256}) {
    for (const int sinks : {0, 4}) {
      for (const int sliding : {0, 1, 100, 333}) {
        Check({{.lengths = {800},
                .softcap = sliding == 100 ? 2.0 : 0.0,
                .sliding_window = sliding,
                .recent_len = recent,
                .sink_len = sinks},
               {500}},
              kBound, 61, StrCat("recent ", recent, " sinks ", sinks, " sliding ", sliding));
      }
    }
  }
}

TEST_F(PrefillOnDevice, SixteenBitNumbers) {
  for (const DeviceIo io : {DeviceIo::kF16, DeviceIo::kBF16}) {
    for (const int dim : {64, 128, 256}) {
      Check(
          {.shape = {.presets = {"k4v4"}, .head_dim = dim, .group = 2, .lengths = {200}}, .io = io},
          kBound, 71, StrCat("head_dim ", dim));
    }
  }
}

// What runs everywhere, on a device that has something faster.
TEST_F(PrefillOnDevice, ThePlainKernel) {
  Check({.shape = {.presets = {"k3v2", "k4v4"}, .group = 3, .lengths = {700, 65}},
         .parts = {300},
         .plain_kernel = true},
        kBound, 53, "plain");
}

TEST_F(PrefillOnDevice, CentresAndAnchors) {
  Check({{.presets = {"k3v2", "k4v4"}, .head_dim = 64, .group = 2, .lengths = {400}, .center = 2}},
        kBound, 47, "centre");
  Check({{.presets = {"k2v2"}, .head_dim = 64, .lengths = {400}, .anchors = 2, .anchor_bits = 8}},
        kBound, 47, "anchors");
  const PrefillRun both{{.presets = {"k3v2"},
                         .lengths = {450},
                         .softcap = 3,
                         .center = 1,
                         .rope_dim = 32,
                         .attention_scale = 1.2f,
                         .anchors = 4,
                         .anchor_bits = 4},
                        {170}};
  Check(both, kBound, 61, "both");
}

TEST_F(PrefillOnDevice, CentresAndAnchorsOfLongPrompts) {
  for (const int dim : {64, 128, 256}) {
    for (const int bits : {4, 8}) {
      Check({{.presets = {"k3v2", "k4v2"},
              .head_dim = dim,
              .group = 3,
              .lengths = {1500, 700},
              .center = 1,
              .anchors = bits == 4 ? 1 : 3,
              .anchor_bits = bits},
             {600}},
            kBound, 131, StrCat("head_dim ", dim, " bits ", bits));
    }
  }
}

TEST_F(PrefillOnDevice, CalibratedBooks) {
  for (const char* preset : {"k2v2", "k3v3", "k4v4"}) {
    Check({{.presets = {preset}, .lengths = {600}, .calibrated = true}}, kBound, 67, preset);
  }
}

TEST_F(PrefillOnDevice, LongPrompts) {
  Check({{.presets = {"k3v2"}, .group = 4, .lengths = {9000}}, {4096}}, kBound, 811, "k3v2");
  Check({{.presets = {"k4v4", "k2v2"}, .lengths = {5000, 3001, 1}}, {2048}}, kBound, 499, "two");
}

TEST_F(PrefillOnDevice, PartsOfALongPromptGiveTheSameBits) {
  PrefillRun run{{.presets = {"k3v2"}, .head_dim = 128, .group = 3, .lengths = {3000}}};
  const auto whole = Run(run);
  run.parts = {700, 1, 64, 1000};
  EXPECT_EQ(Run(run), whole);
}

TEST_F(PrefillOnDevice, WhatHasNoKernelIsRefused) {
  struct Case {
    Shape shape;
    const char* says;
  };
  const Case cases[] = {{{.presets = {"k8v4"}}, "k8v4"},
                        {{.presets = {"f16"}}, "f16"},
                        {{.presets = {"k4v4-group32"}}, "group32"},
                        {{.recent = RecentType::kF16}, "16-bit window"}};
  for (const Case& c : cases) {
    auto device = DeviceCache::Create(
        ConfigOf(c.shape), {.max_tokens = 64, .open_slots = 2, .sealed_slots = 1}, *stream_);
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    const Status s =
        DevicePrefill::Create(**device, {.num_q_heads = 1, .max_tokens = 64}, *stream_).status();
    EXPECT_EQ(s.code(), StatusCode::kUnsupported) << c.says;
    EXPECT_NE(s.message().find(c.says), std::string::npos) << s.message();
    EXPECT_NE(s.message().find("supported: k<a>v<b>"), std::string::npos) << s.message();
  }
}

TEST_F(PrefillOnDevice, WhatDoesNotFitIsRefused) {
  const Shape shape{.presets = {"k4v4", "k4v4"}, .recent_len = 64};
  auto device = *DeviceCache::Create(
      ConfigOf(shape), {.max_tokens = 1024, .open_slots = 16, .sealed_slots = 16}, *stream_);
  const auto create = [&](const DevicePrefillConfig& config) {
    return DevicePrefill::Create(*device, config, *stream_).status().code();
  };
  EXPECT_EQ(create({.num_q_heads = 3, .max_tokens = 64}), StatusCode::kInvalidArgument);
  EXPECT_EQ(create({.num_q_heads = 2, .max_tokens = 0}), StatusCode::kInvalidArgument);
  auto prefill = *DevicePrefill::Create(*device, {.num_q_heads = 2, .max_tokens = 512}, *stream_);
  const auto plan = [&](int sequence, int n) {
    const DevicePrefillItem item{sequence, n};
    return prefill->Plan({&item, 1}, *stream_).code();
  };
  EXPECT_EQ(plan(1, 1), StatusCode::kNotFound);
  EXPECT_EQ(plan(0, 1), StatusCode::kInvalidArgument);  // it is empty
  ASSERT_TRUE(device->Reserve(0, 600, *stream_).ok());
  EXPECT_EQ(plan(0, 600), StatusCode::kInvalidArgument);
  EXPECT_EQ(plan(0, 512), StatusCode::kOk);
  ASSERT_TRUE(device->Reserve(0, 300, *stream_).ok());
  EXPECT_EQ(plan(0, 300), StatusCode::kOk);
  EXPECT_EQ(plan(0, 301), StatusCode::kFailedPrecondition);
  EXPECT_EQ(prefill->Run(1, nullptr, nullptr, *stream_).code(), StatusCode::kInvalidArgument);
  const auto* const odd = reinterpret_cast<const void*>(2);
  EXPECT_EQ(prefill->Run(0, odd, nullptr, *stream_).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tq
