// What is kept of long logs, with bounds small enough for short ones to be long.
#include "runtime/evaluate/corpus_sample.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

std::string Letters(uint64_t seed, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += static_cast<char>('a' + SplitMix64(seed) % 26);
  return out;
}

CorpusItem Chat(std::vector<ChatMessage> messages) {
  CorpusItem item;
  item.kind = CorpusItem::Kind::kChat;
  item.messages = std::move(messages);
  return item;
}

CorpusOptions Options(int64_t max_tokens, uint64_t seed) {
  CorpusOptions options;
  options.max_tokens = max_tokens;
  options.seed = seed;
  options.context_len = kMinWindow;  // pieces of one atom
  return options;
}

Corpus SampleOf(const std::vector<CorpusItem>& items, const CorpusOptions& options,
                int64_t least_bytes) {
  CorpusSample sample(options, least_bytes);
  for (const CorpusItem& item : items) {
    const auto identity = sample.Wants(item);
    if (identity) {
      EXPECT_TRUE(sample.AddRequest(item, *identity));
    }
  }
  Corpus corpus;
  sample.Finish(&corpus);
  return corpus;
}

using Document = std::vector<std::string>;  // its atoms

Corpus SampleOf(const std::vector<Document>& documents, const CorpusOptions& options,
                int64_t least_bytes) {
  CorpusSample sample(options, least_bytes);
  for (const Document& d : documents) {
    sample.BeginDocument("document");
    int64_t offset = 0;
    for (const std::string& atom : d) {
      sample.AddAtom(atom, offset, static_cast<int64_t>(atom.size()));
      offset += static_cast<int64_t>(atom.size());
    }
  }
  Corpus corpus;
  sample.Finish(&corpus);
  return corpus;
}

TEST(CorpusSample, LongRequestsGiveBothSidesUnderEverySeed) {
  std::vector<CorpusItem> items;
  for (uint64_t i = 0; i < 150; ++i) items.push_back(Chat({{"user", Letters(i, 2000)}}));
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Corpus corpus = SampleOf(items, Options(2000, seed), 16000);
    EXPECT_FALSE(corpus.calibration.empty()) << seed;
    EXPECT_FALSE(corpus.held_out.empty()) << seed;
    EXPECT_LE(corpus.report.calibration.bytes + corpus.report.held_out.bytes, 16000);
  }
}

TEST(CorpusSample, ALongDocumentGivesBothSidesUnderEverySeed) {
  Document one;
  for (uint64_t i = 0; i < 300; ++i) one.push_back(Letters(i, 200));
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Corpus corpus = SampleOf({one}, Options(200, seed), 1600);
    EXPECT_FALSE(corpus.calibration.empty()) << seed;
    EXPECT_FALSE(corpus.held_out.empty()) << seed;
  }
}

// Many variants of one conversation are no reason to let the others go.
TEST(CorpusSample, VariantsGoBeforeConversations) {
  std::vector<CorpusItem> items;
  for (uint64_t i = 0; i < 4; ++i) {
    for (uint64_t k = 0; k < 30; ++k) {
      items.push_back(Chat({{"user", Letters(i, 300)}, {"user", Letters(100 + 30 * i + k, 700)}}));
    }
  }
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const Corpus corpus = SampleOf(items, Options(1600, seed), 12800);
    EXPECT_FALSE(corpus.calibration.empty()) << seed;
    EXPECT_FALSE(corpus.held_out.empty()) << seed;
  }
}

// Few units are chosen by their bytes: those of the larger one, whichever was read first.
TEST(CorpusSample, TheSameUnderTwoSystemPromptsStandsOnOneSideInAnyOrder) {
  std::vector<CorpusItem> items;
  for (uint64_t i = 0; i < 6; ++i) {
    for (const size_t system : {20, 3000}) {
      if (i % 2 == 1 && system == 3000) continue;
      items.push_back(Chat({{"system", Letters(1000 + i, system)}, {"user", Letters(i, 400)}}));
    }
  }
  // And a prompt that ends elsewhere, with its answer.
  for (const size_t end : {300, 500}) {
    CorpusItem item;
    item.kind = CorpusItem::Kind::kCompletion;
    const std::string text = Letters(77, 600);
    item.text = text.substr(0, end);
    item.answer = {text.substr(end), "", ""};
    items.push_back(item);
  }
  const auto sides = [](const Corpus& corpus) {
    std::map<std::string, bool> held_out;
    for (const auto* part : {&corpus.calibration, &corpus.held_out}) {
      for (const CorpusItem& item : *part) {
        const std::string what = item.messages.empty() ? "" : item.messages.back().content;
        if (!what.empty()) held_out[what] = part == &corpus.held_out;
      }
    }
    return held_out;
  };
  const std::vector<CorpusItem> reversed(items.rbegin(), items.rend());
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const CorpusOptions options = Options(1 << 20, seed);
    const Corpus corpus = SampleOf(items, options, kLeastStreamBytes);
    EXPECT_EQ(sides(corpus).size(), 6u);
    EXPECT_TRUE(sides(corpus) == sides(SampleOf(reversed, options, kLeastStreamBytes))) << seed;
  }
}

TEST(CorpusSample, APieceThatBothSidesHaveIsCalibrationUnderAnyBudget) {
  const std::string shared = Letters(1, 200);
  Document long_one;
  for (uint64_t i = 0; i < 100; ++i) long_one.push_back(Letters(100 + i, 200));
  // One of the two others is a quarter of all bytes, and held out; which one, the seed says.
  int small_has_it = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const std::vector<Document> documents = {
        {shared, Letters(2, 8000)}, {Letters(3, 8000), shared}, long_one};
    const auto side_of = [&](int64_t max_tokens) {
      const Corpus corpus = SampleOf(documents, Options(max_tokens, seed), 0);
      std::set<std::string> found;
      for (const auto* part : {&corpus.calibration, &corpus.held_out}) {
        for (const CorpusItem& item : *part) {
          if (item.text.find(shared) == std::string::npos) continue;
          found.insert(part == &corpus.held_out ? "held out" : "calibration");
        }
      }
      EXPECT_LE(found.size(), 1u) << seed;
      return found;
    };
    const std::set<std::string> small = side_of(800), large = side_of(1 << 20);
    EXPECT_EQ(large, std::set<std::string>{"calibration"}) << seed;
    if (small.empty()) continue;
    ++small_has_it;
    EXPECT_EQ(small, large) << seed;
  }
  EXPECT_GT(small_has_it, 20);
}

// Half of all requests are long, so about half of those that are kept.
TEST(CorpusSample, LongRequestsHaveTheChanceOfShortOnes) {
  std::vector<CorpusItem> items;
  for (uint64_t i = 0; i < 200; ++i) {
    items.push_back(Chat({{"user", Letters(i, i % 2 == 0 ? 200 : 3000)}}));
  }
  int num_long = 0, num_kept = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Corpus corpus = SampleOf(items, Options(4000, seed), kLeastStreamBytes);
    for (const auto* part : {&corpus.calibration, &corpus.held_out}) {
      for (const CorpusItem& item : *part) num_long += item.bytes() == 3000;
      num_kept += static_cast<int>(part->size());
    }
  }
  EXPECT_GT(num_kept, 200);
  EXPECT_GT(num_long, num_kept * 2 / 5) << num_kept;
}

TEST(CorpusSample, RequestsOfASystemMessageAloneAreToldApart) {
  std::vector<CorpusItem> items;
  for (uint64_t i = 0; i < 12; ++i) {
    items.push_back(Chat({{"system", Letters(i, 400)}}));
    items.push_back(Chat({{"system", Letters(100 + i, 400)}, {"user", ""}}));
  }
  const Corpus corpus = SampleOf(items, Options(1 << 20, 0), kLeastStreamBytes);
  EXPECT_EQ(corpus.report.duplicates, 0);
  EXPECT_EQ(corpus.report.shared_prefix, 0);
  EXPECT_EQ(corpus.calibration.size() + corpus.held_out.size(), 24u);
  EXPECT_GE(corpus.held_out.size(), 3u);
  EXPECT_LE(corpus.held_out.size(), 9u);
  EXPECT_TRUE(corpus.report.notes.empty());
}

}  // namespace
}  // namespace tq
