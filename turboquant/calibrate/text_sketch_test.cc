#include "turboquant/calibrate/text_sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

using Windows = std::vector<std::vector<int32_t>>;

Windows RandomText(uint64_t seed, int windows, int length) {
  Windows out(static_cast<size_t>(windows));
  for (auto& w : out) {
    for (int t = 0; t < length; ++t) w.push_back(static_cast<int32_t>(SplitMix64(seed) % 50000));
  }
  return out;
}

// One long window of all, cut again elsewhere.
Windows CutAgain(const Windows& windows, size_t length) {
  std::vector<int32_t> all;
  for (const auto& w : windows) all.insert(all.end(), w.begin(), w.end());
  Windows out;
  for (size_t at = 0; at < all.size(); at += length) {
    out.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(at),
                     all.begin() + static_cast<std::ptrdiff_t>(std::min(at + length, all.size())));
  }
  return out;
}

TEST(TextSketch, KnowsItsTextHoweverItIsCutAndNoOther) {
  for (const int tokens : {2000, 100000, 1000000}) {
    const Windows text = RandomText(1, tokens / 1000, 1000);
    const TextSketch sketch{text};
    const TextOverlap own = sketch.With(CutAgain(text, 777));
    EXPECT_TRUE(own.certain()) << tokens;
    EXPECT_GT(own.share(), 0.9) << tokens;
    for (uint64_t seed = 2; seed < 12; ++seed) {
      const TextOverlap other = sketch.With(RandomText(seed, 20, 1000));
      EXPECT_FALSE(other.certain()) << tokens << ' ' << seed;
      EXPECT_LT(other.share(), 0.3) << tokens << ' ' << seed;
    }
  }
}

// Whatever was read: a guess that finds its bit set has learned next to nothing.
TEST(TextSketch, OneBitInEightIsSet) {
  for (const int tokens : {1000, 300000}) {
    const std::string text = TextSketch{RandomText(1, 1, tokens)}.ToString();
    int set = 0;
    for (const char c : text.substr(text.find(':') + 1)) {
      set += std::popcount(static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10));
    }
    EXPECT_EQ(set, 1024) << tokens;
    int64_t pieces = 0, found = 0;
    const auto sketch = TextSketch::Parse(text);
    for (uint64_t seed = 10; seed < 40; ++seed) {
      const TextOverlap other = sketch->With(RandomText(seed, 1, 20000));
      pieces += other.pieces;
      found += other.found;
    }
    EXPECT_NEAR(static_cast<double>(found) / static_cast<double>(pieces), TextOverlap::kByChance,
                0.03);
  }
}

TEST(TextSketch, TellsTheShareThatWasRead) {
  const Windows text = RandomText(1, 100, 1000);
  const TextSketch sketch{text};
  Windows mixed = RandomText(2, 30, 1000);
  mixed.insert(mixed.end(), text.begin(), text.begin() + 10);
  const TextOverlap overlap = sketch.With(mixed);
  EXPECT_TRUE(overlap.certain());
  EXPECT_NEAR(overlap.share(), 0.25, 0.08);
  // What repeats counts once: a prompt that every request begins with is not most of the text.
  Windows repeated = RandomText(3, 10, 1000);
  for (auto& w : repeated) w.insert(w.begin(), text[0].begin(), text[0].begin() + 500);
  EXPECT_LT(sketch.With(repeated).share(), 0.2);
}

TEST(TextSketch, OfNothingKnowsNothing) {
  EXPECT_TRUE(TextSketch().empty());
  EXPECT_TRUE(TextSketch{RandomText(1, 5, 20)}.empty()) << "no window is as long as a piece";
  EXPECT_EQ(TextSketch().With(RandomText(1, 1, 1000)).pieces, 0);
  EXPECT_FALSE(TextSketch().With(RandomText(1, 1, 1000)).certain());
  EXPECT_EQ(TextSketch().ToString(), "");
}

TEST(TextSketch, IsTheSameAfterItWasWritten) {
  const TextSketch sketch{RandomText(1, 100, 1000)};
  const Result<TextSketch> again = TextSketch::Parse(sketch.ToString());
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(*again, sketch);
  EXPECT_TRUE(TextSketch::Parse("")->empty());
  const std::string good = sketch.ToString();
  for (const std::string& bad :
       {good.substr(1), good.substr(0, good.size() - 1), good + "0", "3" + good.substr(1),
        "99" + good.substr(1), std::string("7"), good.substr(0, 9) + "g" + good.substr(10),
        good.substr(0, good.find(':') + 1) + std::string(2048, 'f')}) {
    EXPECT_EQ(TextSketch::Parse(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace tq
