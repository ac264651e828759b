#include "turboquant/cache/snapshot.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>

#include "turboquant/base/exact_bytes_for_test.h"
#include "turboquant/base/file.h"
#include "turboquant/cache/cache_test_util.h"
#include "turboquant/cache/snapshot_test_util.h"

namespace tq {
namespace {

namespace fs = std::filesystem;
using namespace testing_util;  // NOLINT(google-build-using-namespace): offsets of the header

constexpr uint64_t kStructure = 0xab12;

std::vector<int32_t> Tokens(int64_t n) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>(i * 7));
  return tokens;
}

SnapshotMeta Meta(int64_t length) {
  return {kStructure, "Tiny", "k3v2", Tokens(length), {0.5f, -1.f}};
}

class SnapshotTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / StrCat("snapshot_", ::getpid());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path() const { return (folder_ / "a.tqcache").string(); }

  // The file of a sequence, as bytes.
  std::string Save(const Driver& d, SeqId seq) const {
    const Status s = SaveSnapshot(*d.cache, seq, Meta(*d.cache->Length(seq)), Path());
    EXPECT_TRUE(s.ok()) << s.ToString();
    return *ReadFile(Path());
  }
  fs::path folder_;
};

Result<Snapshot> Parse(const std::string& bytes) {
  return Snapshot::Parse(std::as_bytes(std::span(bytes)), "f");
}

// Every slot of two sequences, with the bytes of rows that were never written.
void ExpectSameSlots(const KvCache& a, SeqId x, const KvCache& b, SeqId y) {
  ASSERT_EQ(*a.Length(x), *b.Length(y));
  for (int64_t i = 0; i < DivCeil<int64_t>(*a.Length(x), kPageLen); ++i) {
    const auto same = [i](const std::byte* p, const std::byte* q, size_t n) {
      ASSERT_EQ(p == nullptr, q == nullptr) << "block " << i;
      if (p != nullptr) {
        const size_t at = static_cast<size_t>(std::mismatch(p, p + n, q).first - p);
        ASSERT_EQ(at, n) << "block " << i;
      }
    };
    same(a.OpenSlot(x, i), b.OpenSlot(y, i), a.open_slot_bytes());
    same(a.SealedSlot(x, i), b.SealedSlot(y, i), a.sealed_slot_bytes());
    same(a.WindowSlot(x, i), b.WindowSlot(y, i), a.window_slot_bytes());
  }
}

CacheConfig TinyConfig(const char* preset) {
  CacheConfig c = SmallConfig(preset);
  c.num_layers = c.num_kv_heads = 1;
  c.head_dim = 2;
  c.rope = {};
  c.recent_len = 0;
  c.sink_len = 0;
  c.rollback_len = 0;
  c.formats.resize(1);
  return c;
}

TEST_F(SnapshotTest, RestoredGoesOnLikeTheSaved) {
  struct Case {
    const char* preset;
    std::vector<int> windowed;  // layers
  };
  for (const auto& [preset, windowed] : std::initializer_list<Case>{
           {"k3v2", {}}, {"k4v8", {}}, {"f16", {}}, {"k4v4", {0}}, {"k3v2", {0, 1}}}) {
    for (const int length : {1, 63, 64, 65, 500, 640}) {
      CacheConfig config = SmallConfig(preset);
      for (const int layer : windowed) Driver::SetWindow(&config, layer, 100);
      Driver d(config);
      const SeqId seq = d.cache->NewSequence();
      d.Append(seq, length);
      const std::string file = Save(d, seq);
      const auto snapshot = Parse(file);
      ASSERT_TRUE(snapshot.ok()) << snapshot.status().ToString();
      EXPECT_EQ(snapshot->meta().tokens, Tokens(length));
      EXPECT_EQ(snapshot->meta().logits, (std::vector<float>{0.5f, -1.f}));
      EXPECT_EQ(snapshot->meta().model, "Tiny");
      EXPECT_EQ(snapshot->file_bytes(), file.size());
      EXPECT_EQ(snapshot->slot_bytes(), d.cache->Bytes().total() - d.cache->ahead_bytes());
      const auto restored = snapshot->Restore(*d.cache, kStructure);
      ASSERT_TRUE(restored.ok()) << restored.status().ToString();
      ExpectSameSlots(*d.cache, seq, *d.cache, *restored);
      // Both take back as many tokens and go on with others.
      const std::vector<uint64_t> history = d.history[seq];
      const int64_t back = std::min(length, 60);
      for (const SeqId s : {seq, *restored}) {
        d.next_token = 100000;
        d.history[s] = history;
        EXPECT_TRUE(d.Truncate(s, length - back).exact);
        d.Append(s, 300);
        d.ExpectEqualToFresh(s);
      }
      ExpectSameSlots(*d.cache, seq, *d.cache, *restored);
      // The restored one shares nothing with the other.
      ASSERT_TRUE(d.cache->Free(seq).ok());
      d.ExpectEqualToFresh(*restored);
    }
  }
}

TEST_F(SnapshotTest, WindowsAreNamedAndTheirBlocksAreChecked) {
  CacheConfig config = SmallConfig("k4v4");
  Driver::SetWindow(&config, 1, 100);
  Driver d(config);
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 500);
  const std::string file = Save(d, seq);
  EXPECT_EQ(Parse(file)->num_window(), 3);  // positions from 500 - 64 - 99 on
  Driver::SetWindow(&config, 1, 128);
  Driver other(config);
  EXPECT_EQ(Parse(file)->Restore(*other.cache, kStructure).status().message(),
            "'f' was saved with other formats (k3v2): it has 'layer 1 with a window of 100, heads "
            "0-1: f16', this cache 'layer 1 with a window of 128, heads 0-1: f16'; use the formats "
            "that it was saved with");
  // Without the newest window block.
  std::string bad = file;
  bad[SectionStart(bad, kBlocksSection) + 7] &= ~4;
  const size_t slot = d.cache->window_slot_bytes();
  bad.resize(bad.size() - slot);
  PutU64(&bad, kAtSections + 16 * kWindowSection, SectionBytes(bad, kWindowSection) - slot);
  FixSums(&bad);
  const auto parsed = Parse(bad);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->Restore(*d.cache, kStructure).status().message(),
            "'f': block 7 of 8 for 500 tokens has no window form, which no sequence has");
}

TEST_F(SnapshotTest, CentredKeys) {
  CacheConfig config = SmallConfig("k4v4");
  std::vector<float> mean(32, 0.f);
  mean[3] = 5;
  for (HeadFormat& f : config.formats) {
    f.k = WithCenter(f.k, Center::kRopeMean);
    config.centers.push_back(MakeHeadCenter(mean, config.rope));
  }
  Driver d(config);
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 400);
  const std::string file = Save(d, seq);
  Driver other(config);
  const auto restored = Parse(file)->Restore(*other.cache, kStructure);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(other.cache->center_table().num_blocks(), d.cache->center_table().num_blocks());
  config.centers[1].pairs[0].mu_i += 1;
  Driver moved(config);
  const Status s = Parse(file)->Restore(*moved.cache, kStructure).status();
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find("it has 'calibrated tensors: "), std::string::npos) << s.message();
}

TEST_F(SnapshotTest, TheLargestRowsAreRestored) {
  Driver d(SmallConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  const std::vector<float> rows(3 * 2 * 32, 3e38f);  // clamped, and gathered by the rotation
  ASSERT_TRUE(d.cache->BeginAppend(seq, 3).ok());
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(d.cache->AppendLayer(seq, layer, rows.data(), rows.data(), d.pool).ok());
  }
  ASSERT_TRUE(d.cache->CommitAppend(seq).ok());
  const std::string file = Save(d, seq);
  const auto restored = Parse(file)->Restore(*d.cache, kStructure);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  ExpectSameSlots(*d.cache, seq, *d.cache, *restored);
}

TEST_F(SnapshotTest, InexactStaysInexact) {
  Driver d(SmallConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 640);
  EXPECT_TRUE(Parse(Save(d, seq))->exact());
  EXPECT_FALSE(d.Truncate(seq, 250).exact);
  const std::string file = Save(d, seq);
  const auto snapshot = Parse(file);
  EXPECT_FALSE(snapshot->exact());
  EXPECT_FALSE(d.cache->IsExact(*snapshot->Restore(*d.cache, kStructure)));
  EXPECT_FALSE(d.cache->IsExact(d.Fork(seq)));
}

TEST_F(SnapshotTest, AnEmptySequence) {
  Driver d(SmallConfig("k3v2"));
  const std::string file = Save(d, d.cache->NewSequence());
  const auto restored = Parse(file)->Restore(*d.cache, kStructure);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  EXPECT_EQ(*d.cache->Length(*restored), 0);
}

TEST_F(SnapshotTest, WhatCannotBeSaved) {
  Driver d(SmallConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  EXPECT_EQ(SaveSnapshot(*d.cache, 99, {}, Path()).code(), StatusCode::kNotFound);
  d.Append(seq, 10);
  EXPECT_EQ(SaveSnapshot(*d.cache, seq, Meta(9), Path()).message(),
            "cache: 9 token ids for a sequence of 10 tokens");
  ASSERT_TRUE(d.cache->BeginAppend(seq, 1).ok());
  EXPECT_EQ(SaveSnapshot(*d.cache, seq, Meta(10), Path()).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(d.cache->AbortAppend(seq).ok());
  EXPECT_FALSE(fs::exists(Path()));
  EXPECT_EQ(SaveSnapshot(*d.cache, seq, Meta(10), "/dev/full").code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(SaveSnapshot(*d.cache, seq, Meta(10), (folder_ / "no" / "f").string()).code(),
            StatusCode::kNotFound);
}

TEST_F(SnapshotTest, EveryTruncationIsRefused) {
  Driver d(TinyConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 70);
  const std::string file = Save(d, seq);
  ASSERT_TRUE(Parse(file).ok());
  for (size_t n = 0; n < file.size(); ++n) {
    const ExactBytes cut(file.substr(0, n));
    const Status s = Snapshot::Parse(cut.span(), "f").status();
    ASSERT_EQ(s.code(), n < 8 ? StatusCode::kInvalidArgument : StatusCode::kDataLoss) << n;
    if (n >= kSnapshotHeaderBytes) {
      ASSERT_EQ(s.message(), StrCat("'f' has ", n,
                                    " bytes, fewer than its header counts: it was "
                                    "truncated"));
    }
  }
  EXPECT_EQ(Parse("").status().message(),
            "'f' is not a cache file: it does not begin with TQCACHE");
  EXPECT_EQ(Parse(file.substr(0, 100)).status().message(),
            "'f' is truncated: it has 100 bytes, the header alone has 256");
  EXPECT_EQ(
      Parse(file + "x").status().message(),
      StrCat("'f' has ", file.size() + 1, " bytes, more than its header counts: it was added to"));
}

TEST_F(SnapshotTest, EveryFlippedByteIsRefused) {
  Driver d(TinyConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 70);
  std::string file = Save(d, seq);
  for (size_t i = 0; i < file.size(); ++i) {
    for (const char flip : {'\x01', '\x80', '\xff'}) {
      file[i] = static_cast<char>(file[i] ^ flip);
      const Status s = Parse(file).status();
      const StatusCode want = i < 8    ? StatusCode::kInvalidArgument
                              : i < 12 ? StatusCode::kUnsupported
                                       : StatusCode::kDataLoss;
      ASSERT_EQ(s.code(), want) << "byte " << i << ": " << s.message();
      file[i] = static_cast<char>(file[i] ^ flip);
    }
  }
  file[8] = 2;
  EXPECT_EQ(Parse(file).status().message(),
            "'f' has version 2 of the cache file; this program reads version 1; save the cache "
            "again");
  file[8] = 1;
  file.back() = static_cast<char>(~file.back());
  EXPECT_EQ(Parse(file).status().message(),
            "'f' is damaged: the sum of its sealed blocks is wrong");
}

TEST_F(SnapshotTest, OtherModelsAndFormatsAreRefusedAndTheCacheStays) {
  Driver d(SmallConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 300);
  const std::string file = Save(d, seq);
  const auto snapshot = Parse(file);
  const auto refused = [&](CacheConfig config, uint64_t structure) {
    Driver live(std::move(config));
    const SeqId other = live.cache->NewSequence();
    live.Append(other, 200);
    const int64_t open = live.cache->num_open_slots(), sealed = live.cache->num_sealed_slots();
    const Status s = snapshot->Restore(*live.cache, structure).status();
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(live.cache->num_open_slots(), open);
    EXPECT_EQ(live.cache->num_sealed_slots(), sealed);
    live.Append(other, 100);
    live.ExpectEqualToFresh(other);
    return s.message();
  };
  EXPECT_EQ(refused(SmallConfig("k3v2"), 0xcd34),
            "'f' was saved from another model: 'Tiny' of structure ab12; this one has structure "
            "cd34");
  const std::string begin = "'f' was saved with other formats (k3v2): it has '";
  const std::string end = "; use the formats that it was saved with";
  EXPECT_EQ(refused(SmallConfig("k4v4"), kStructure),
            begin + "layers 0-1, heads 0-1: k3v2', this cache 'layers 0-1, heads 0-1: k4v4'" + end);
  CacheConfig config = SmallConfig("k3v2");
  config.formats[3] = *ParsePreset("k3v4");
  EXPECT_EQ(refused(config, kStructure),
            begin + "layers 0-1, heads 0-1: k3v2', this cache 'layer 0, heads 0-1: k3v2'" + end);
  config = SmallConfig("k3v2");
  config.formats[3].v.codebook = Codebook::kLloyd;
  config.formats[2] = config.formats[1] = config.formats[0] = config.formats[3];
  const std::string message = refused(config, kStructure);
  EXPECT_NE(message.find("codebook lloyd"), std::string::npos) << message;
  EXPECT_NE(message.find("codebook uniform"), std::string::npos) << message;
  config = SmallConfig("k3v2");
  config.recent_len = 192;
  EXPECT_EQ(refused(config, kStructure),
            begin +
                "window: 128 recent tokens at q8, first 64, rollback 64', this cache 'window: "
                "192 recent tokens at q8, first 64, rollback 64'" +
                end);
  config = SmallConfig("k3v2");
  config.seed = 5;
  EXPECT_EQ(refused(config, kStructure),
            begin + "rotation seed: 0', this cache 'rotation seed: 5'" + end);
  config = SmallConfig("k3v2");
  config.head_dim = 64;
  EXPECT_EQ(refused(config, kStructure),
            begin +
                "shape: 2 layers x 2 KV heads x head_dim 32', this cache 'shape: 2 layers x 2 "
                "KV heads x head_dim 64'" +
                end);
  // Window lengths that come to the same blocks are the same.
  config = SmallConfig("k3v2");
  config.recent_len = 65;
  Driver same(config);
  EXPECT_TRUE(snapshot->Restore(*same.cache, kStructure).ok());
}

TEST_F(SnapshotTest, TheLimitOfTheCacheHolds) {
  Driver d(SmallConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 640);
  const std::string file = Save(d, seq);
  CacheConfig config = SmallConfig("k3v2");
  config.max_bytes = 20000;
  Driver small(config);
  const Status s = Parse(file)->Restore(*small.cache, kStructure).status();
  EXPECT_EQ(s.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(s.message(), StrCat("'f': cache: 640 tokens need ",
                                d.cache->Bytes().total() - d.cache->ahead_bytes(),
                                " bytes beside 0 in use; the limit is 20000"));
  EXPECT_EQ(small.cache->Bytes().total(), 0u);
}

// A file whose sums are right and whose contents are not.
std::string Forge(std::string file, const std::function<void(std::string*)>& edit) {
  edit(&file);
  testing_util::FixSums(&file);
  return file;
}

TEST_F(SnapshotTest, ForgedFilesAskForNothing) {
  Driver d(SmallConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 500);
  const std::string file = Save(d, seq);
  const auto put = [](size_t at, uint64_t n) {
    return [at, n](std::string* f) { PutU64(f, at, n); };
  };
  const auto refused = [&](const std::function<void(std::string*)>& edit) {
    const std::string forged = Forge(file, edit);
    const auto snapshot = Parse(forged);
    Status s = snapshot.status();
    if (snapshot.ok()) s = snapshot->Restore(*d.cache, kStructure).status();
    EXPECT_EQ(s.code(), StatusCode::kDataLoss);
    return s.message();
  };
  ASSERT_TRUE(Parse(Forge(file, [](std::string*) {})).ok());
  const uint64_t huge = uint64_t{1} << 62;
  EXPECT_EQ(refused(put(kAtLength, huge))
                .rfind("'f' contradicts itself: sections of 2000 bytes of "
                       "tokens and 8 blocks for 4611686018427387904 tokens",
                       0),
            0u);
  EXPECT_NE(refused(put(kAtOpenSlotBytes, huge)).find("contradicts itself"), std::string::npos);
  EXPECT_NE(refused(put(kAtOpenSlotBytes, 0)).find("contradicts itself"), std::string::npos);
  EXPECT_NE(refused(put(kAtSealedSlotBytes, huge)).find("contradicts itself"), std::string::npos);
  for (size_t s = 0; s < kNumSnapshotSections; ++s) {
    EXPECT_NE(refused(put(kAtSections + 16 * s, huge)).find("truncated"), std::string::npos);
    EXPECT_NE(refused(put(kAtSections + 16 * s, ~uint64_t{0})).find("truncated"),
              std::string::npos);
  }
  // Sizes that fit each other and not the formats.
  EXPECT_EQ(refused([&](std::string* f) {
              const uint64_t slot = GetU64(*f, kAtSealedSlotBytes);
              const uint64_t bytes = SectionBytes(*f, kSealedSection);
              PutU64(f, kAtSealedSlotBytes, slot - 1);
              PutU64(f, kAtSections + 16 * kSealedSection, bytes - bytes / slot);
              f->resize(f->size() - bytes / slot);
            }),
            StrCat("'f' contradicts itself: slots of ", d.cache->open_slot_bytes(), ", ",
                   d.cache->sealed_slot_bytes() - 1, " and 0 bytes, but its formats have ",
                   d.cache->open_slot_bytes(), ", ", d.cache->sealed_slot_bytes(), " and 0"));

  // Forms of blocks: the byte of block b.
  const size_t blocks_at = SectionStart(file, kBlocksSection);
  EXPECT_EQ(refused([&](std::string* f) { (*f)[blocks_at] = 8; }),
            "'f' contradicts itself: a block has the forms 8");
  // Block 0 is the sink (open), block 1 sealed, block 7 is written to: swapped.
  EXPECT_EQ(refused([&](std::string* f) { std::swap((*f)[blocks_at], (*f)[blocks_at + 1]); }),
            "'f': block 0 of 8 for 500 tokens has no open and a sealed form, which no sequence "
            "has");
  EXPECT_EQ(refused([&](std::string* f) { std::swap((*f)[blocks_at + 1], (*f)[blocks_at + 7]); }),
            "'f': block 7 of 8 for 500 tokens has no open and a sealed form, which no sequence "
            "has");
  // Scales that are not numbers.
  const KvCache::HeadLayout& l = d.cache->layout(1, 1);
  const size_t open_at = SectionStart(file, kOpenSection);
  EXPECT_EQ(refused([&](std::string* f) {
              std::memset(&(*f)[open_at + l.open_offset + l.open.v_scales + 8], 0xff, 4);
            }),
            "'f': block 0 of 8 has numbers that no block has");
  EXPECT_EQ(refused([&](std::string* f) {
              std::memset(&(*f)[f->size() - sizeof(RecordSideInfo)], 0xff, 2);
            }).find("'f': block "),
            0u);
  for (const float scale : {-1e-3f, 1e17f}) {
    EXPECT_EQ(refused([&](std::string* f) {
                std::memcpy(&(*f)[open_at + l.open_offset + l.open.k_scales], &scale, 4);
              }),
              "'f': block 0 of 8 has numbers that no block has");
  }
  EXPECT_EQ(refused([&](std::string* f) { (*f)[24] ^= 1; }),
            "'f' contradicts itself: the hash of its formats is another");
  const std::string foreign =
      Forge(file, [](std::string* f) { std::memcpy(&(*f)[32], "cuda", 4); });
  EXPECT_EQ(Parse(foreign).status().message(), "'f' has the layout 'cuda'; this cache reads 'cpu'");
  EXPECT_EQ(Parse(foreign).status().code(), StatusCode::kUnsupported);
  d.Append(seq, 100);
  d.ExpectEqualToFresh(seq);
}

TEST_F(SnapshotTest, SixteenBitRowsAreNumbers) {
  Driver d(SmallConfig("f16"));
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 100);
  const std::string file = Save(d, seq);
  const size_t at = SectionStart(file, kOpenSection) + d.cache->layout(1, 0).open_offset + 2;
  const std::string forged = Forge(file, [at](std::string* f) { (*f)[at + 1] = 0x7c; });
  EXPECT_EQ(Parse(forged)->Restore(*d.cache, kStructure).status().message(),
            "'f': block 0 of 2 has numbers that no block has");
}

TEST_F(SnapshotTest, OpenReadsFiles) {
  Driver d(SmallConfig("k4v4"));
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 300);
  Save(d, seq);
  const auto snapshot = Snapshot::Open(Path());
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().ToString();
  const auto restored = snapshot->Restore(*d.cache, kStructure);
  ASSERT_TRUE(restored.ok()) << restored.status().ToString();
  ExpectSameSlots(*d.cache, seq, *d.cache, *restored);
  EXPECT_EQ(Snapshot::Open((folder_ / "none").string()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Snapshot::Open(folder_.string()).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SnapshotTest, AnyHistoryIsRestored) {
  const bool ok = rc::check("save and restore after appends and truncations", [this] {
    CacheConfig config = SmallConfig(*rc::gen::element("k3v2", "k4v8", "f16"));
    config.recent_len = *rc::gen::element(0, 64, 128);
    config.sink_len = *rc::gen::element(0, 4, 65);
    config.rollback_len = *rc::gen::element(0, 64, 100);
    Driver d(config);
    const SeqId seq = d.cache->NewSequence();
    const int steps = *rc::gen::inRange(1, 8);
    for (int i = 0; i < steps; ++i) {
      const int64_t length = *d.cache->Length(seq);
      if (i % 2 == 1) {
        d.Truncate(seq, *rc::gen::inRange<int64_t>(0, length + 1));
      } else {
        d.Append(seq, *rc::gen::element(1, 63, 64, 65, 150, 300));
      }
    }
    const std::string file = Save(d, seq);
    const auto snapshot = Parse(file);
    RC_ASSERT(snapshot.ok());
    Driver e(config);
    const auto restored = snapshot->Restore(*e.cache, kStructure);
    RC_ASSERT(restored.ok());
    e.history[*restored] = d.history[seq];
    e.next_token = d.next_token;
    ExpectSameSlots(*d.cache, seq, *e.cache, *restored);
    d.Append(seq, 200);
    e.Append(*restored, 200);
    ExpectSameSlots(*d.cache, seq, *e.cache, *restored);
    RC_ASSERT(d.cache->IsExact(seq) == e.cache->IsExact(*restored));
    RC_ASSERT(!testing::Test::HasFailure());
  });
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace tq
