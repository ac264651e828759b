#include "runtime/evaluate/corpus.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "runtime/evaluate/fakes_for_test.h"
#include "runtime/evaluate/input_file.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

namespace fs = std::filesystem;

class CorpusTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / (std::string("corpus_") + info->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = (folder_ / name).string();
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  CorpusOptions Options(std::vector<std::string> paths) {
    CorpusOptions o;
    o.paths = std::move(paths);
    return o;
  }
  static Corpus Read(const CorpusOptions& options) {
    Result<Corpus> corpus = ReadCorpus(options);
    EXPECT_TRUE(corpus.ok()) << corpus.status().ToString();
    return corpus.ok() ? *std::move(corpus) : Corpus{};
  }
  static std::string All(const Corpus& corpus) {
    std::string out;
    for (const auto* part : {&corpus.calibration, &corpus.held_out}) {
      for (const CorpusItem& item : *part) {
        out += item.text + item.body + item.name;
        for (const ChatMessage& m : item.messages) out += m.content;
        if (item.answer) out += item.answer->content;
      }
    }
    return out;
  }

  fs::path folder_;
};

std::string Words(uint64_t seed, size_t bytes) {
  std::string out;
  while (out.size() < bytes) {
    const uint64_t n = SplitMix64(seed);
    for (int i = 0; i < 8; ++i) out += static_cast<char>('a' + (n >> (8 * i)) % 26);
    out += out.size() % 7 == 0 ? '\n' : ' ';
  }
  return out.substr(0, bytes);
}

std::string Chat(const std::vector<std::string>& turns, const std::string& answer = "") {
  nlohmann::ordered_json j;
  j["messages"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < turns.size(); ++i) {
    j["messages"].push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", turns[i]}});
  }
  nlohmann::ordered_json line = {{"request", j}};
  if (!answer.empty()) {
    line["response"] = {
        {"choices",
         {{{"message", {{"role", "assistant"}, {"content", answer}}}, {"finish_reason", "stop"}}}}};
  }
  return line.dump() + "\n";
}

std::string Log(int count, size_t bytes = 400) {
  std::string log;
  for (int i = 0; i < count; ++i) log += Chat({Words(i + 1, bytes)}, "answer " + Words(i, 20));
  return log;
}

std::string Gzip(const std::string& text) {
  std::string out(compressBound(text.size()) + 64, '\0');
  z_stream z{};
  EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

TEST_F(CorpusTest, ArchivesGiveWhatWentIn) {
  const std::string text = Words(1, 300000);
  for (const std::string& packed :
       {text, Gzip(text), Zstd(text), Gzip(text.substr(0, 1000)) + Gzip(text.substr(1000)),
        Zstd(text.substr(0, 1000)) + Zstd(text.substr(1000))}) {
    const auto read = ReadInputFile(Write("file", packed));
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_TRUE(*read == text);
  }
  EXPECT_EQ(*ReadInputFile(Write("empty", "")), "");
  // Small files that unpack to a lot are refused at the bound.
  const std::string bomb = Write("bomb", Gzip(std::string(10000000, 'a')));
  EXPECT_EQ(ReadInputFile(bomb, 9999999).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadInputFile(bomb, 10000000)->size(), 10000000u);
}

TEST_F(CorpusTest, TruncatedArchivesAreDataLossAtEveryByte) {
  const std::string text = Words(1, 300);
  for (const std::string& packed : {Gzip(text), Zstd(text)}) {
    for (size_t n = 4; n < packed.size(); ++n) {
      const auto read = ReadInputFile(Write("file", packed.substr(0, n)));
      ASSERT_EQ(read.status().code(), StatusCode::kDataLoss) << n;
    }
  }
  EXPECT_EQ(ReadInputFile((folder_ / "none").string()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadInputFile(folder_.string()).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(CorpusTest, RequestsOfEveryPackingAreTheSame) {
  const std::string log = Log(20);
  const Corpus plain = Read(Options({Write("a.jsonl", log)}));
  EXPECT_EQ(plain.report.lines, 20);
  EXPECT_EQ(plain.report.calibration.requests + plain.report.held_out.requests, 20);
  EXPECT_EQ(plain.report.calibration.with_answer, plain.report.calibration.requests);
  EXPECT_GT(plain.report.held_out.requests, 1);
  EXPECT_LT(plain.report.held_out.requests, 9);
  std::string array = log;
  for (char& c : array) c = c == '\n' ? ',' : c;
  array.back() = ']';
  for (const std::string& path : {Write("a.jsonl.gz", Gzip(log)), Write("a.jsonl.zst", Zstd(log)),
                                  Write("unnamed", log), Write("all.json", "[\n" + array)}) {
    const Corpus packed = Read(Options({path}));
    EXPECT_EQ(packed.report.hash, plain.report.hash) << path;
    EXPECT_EQ(packed.report.calibration_hash, plain.report.calibration_hash) << path;
  }
}

TEST_F(CorpusTest, TheSeedDecidesNothingButOrderAndParts) {
  CorpusOptions options = Options({Write("a.jsonl", Log(30))});
  const Corpus a = Read(options), again = Read(options);
  EXPECT_EQ(a.report.hash, again.report.hash);
  EXPECT_EQ(a.calibration[0].name, again.calibration[0].name);
  options.seed = 7;
  const Corpus b = Read(options);
  EXPECT_NE(a.report.calibration_hash, b.report.calibration_hash);
  EXPECT_EQ(a.calibration.size() + a.held_out.size(), b.calibration.size() + b.held_out.size());
}

TEST_F(CorpusTest, BadLinesAreCountedWithTheirReason) {
  const std::string path = Write("a.jsonl", "{\n" + Log(3) + "\n[]\n{\"prompt_tokens\": 7}\n{\n" +
                                                R"({"messages": []})" + "\n");
  const Corpus corpus = Read(Options({path}));
  EXPECT_EQ(corpus.report.lines, 8);
  ASSERT_EQ(corpus.report.skipped.size(), 4u);
  EXPECT_EQ(corpus.report.skipped[0].reason, "it is not JSON");
  EXPECT_EQ(corpus.report.skipped[0].count, 2);
  EXPECT_EQ(corpus.report.skipped[0].example, path + ", line 1");
  EXPECT_EQ(corpus.report.skipped[2].reason, "it has neither messages nor a prompt");
  EXPECT_EQ(corpus.report.skipped[3].reason, "its texts are empty");

  const Status nothing = ReadCorpus(Options({Write("b.jsonl", "{\n{\n")})).status();
  EXPECT_EQ(nothing.code(), StatusCode::kDataLoss);
  EXPECT_NE(nothing.message().find("2 skipped: it is not JSON (2, first: "), std::string::npos)
      << nothing.message();
  EXPECT_EQ(ReadCorpus(Options({Write("c", "")})).status().message(),
            "--data: there is no text in it");
  EXPECT_EQ(ReadCorpus(Options({"/nowhere"})).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ReadCorpus(Options({})).status().code(), StatusCode::kInvalidArgument);
}

// No reason, name or text may show what an expression takes out, in whatever part of a line.
TEST_F(CorpusTest, NothingThatIsRedactedIsKeptOrTold) {
  std::string log = Log(5);
  log += R"({"messages":[{"role":"user","content":"my number is 555-1234"}],"user":"555-1234"})"
         "\n";
  log += R"({"prompt":"p","prompt_tokens":"555-1234"})"
         "\n";
  log += R"({"prompt":"call","response":[{"choices":[{"delta":{"content":"555"}}]},)"
         R"({"choices":[{"delta":{"content":"-1234"}}]}]})"
         "\n";
  const std::string text = Words(9, 16370) + " 555-1234 " + Words(10, 40000);
  CorpusOptions options = Options({Write("a.jsonl", log), Write("t.txt", text)});
  options.redactions = {{"555-1234", "[number]"}};
  const Corpus corpus = Read(options);
  EXPECT_EQ(All(corpus).find("555"), std::string::npos);
  EXPECT_EQ(CorpusJson(corpus.report).dump().find("555"), std::string::npos);
  EXPECT_NE(All(corpus).find("my number is [number]"), std::string::npos);
  // The reason for which the line without a number of tokens is skipped has no text in it.
  EXPECT_EQ(corpus.report.redactions, 4);
}

TEST_F(CorpusTest, DuplicatesAndEarlierTurnsAreDropped) {
  const std::string a = Words(1, 500), b = Words(2, 500), c = Words(3, 500);
  const std::string log = Chat({a}, b) + Chat({a}, b) +       // twice
                          Chat({a, b, c}, "last") +           // a later turn
                          Chat({c}, "x") +                    // another
                          Chat({c + " one more word"}, "x");  // begins alike
  const Corpus corpus = Read(Options({Write("a.jsonl", log)}));
  EXPECT_EQ(corpus.report.duplicates, 1);
  EXPECT_EQ(corpus.report.shared_prefix, 2);
  EXPECT_EQ(corpus.calibration.size() + corpus.held_out.size(), 2u);
  EXPECT_NE(All(corpus).find("last"), std::string::npos);
  EXPECT_NE(All(corpus).find("one more word"), std::string::npos);
}

// Conversations that share half of their text would tell the held-out part what it must not know.
TEST_F(CorpusTest, WhatBeginsAlikeStandsOnOneSide) {
  std::string log;
  std::vector<std::string> openings;
  for (int i = 0; i < 8; ++i) {
    openings.push_back(Words(100 + i, 1000));
    for (int k = 0; k < 3; ++k) log += Chat({openings[i] + Words(1000 + 10 * i + k, 600)});
  }
  for (uint64_t seed = 0; seed < 5; ++seed) {
    CorpusOptions options = Options({Write("a.jsonl", log)});
    options.seed = seed;
    const Corpus corpus = Read(options);
    EXPECT_EQ(corpus.calibration.size() + corpus.held_out.size(), 24u);
    ASSERT_FALSE(corpus.held_out.empty());
    std::set<std::string> seen;
    for (const CorpusItem& item : corpus.calibration) {
      seen.insert(item.messages[0].content.substr(0, 1000));
    }
    for (const CorpusItem& item : corpus.held_out) {
      EXPECT_FALSE(seen.contains(item.messages[0].content.substr(0, 1000)));
    }
  }
}

TEST_F(CorpusTest, DocumentsAreNotDividedUnlessThereIsOnlyOne) {
  for (int i = 0; i < 6; ++i) Write(StrCat("docs/", i, ".md"), Words(i + 1, 60000));
  Write("docs/.hidden", "no");
  Write("docs/image.bin", std::string("\x89PNG\0\0", 6));
  const Corpus corpus = Read(Options({(folder_ / "docs").string()}));
  EXPECT_EQ(corpus.report.texts, 6);
  EXPECT_EQ(corpus.report.sources.size(), 7u);
  ASSERT_EQ(corpus.report.skipped.size(), 1u);
  EXPECT_EQ(corpus.report.skipped[0].reason, "the file is not text");
  std::set<std::string> calibration;
  for (const CorpusItem& item : corpus.calibration) calibration.insert(item.name.substr(0, 200));
  for (const CorpusItem& item : corpus.held_out) EXPECT_FALSE(calibration.contains(item.name));
  EXPECT_EQ(corpus.calibration.size() + corpus.held_out.size(), 6u);
  EXPECT_EQ(corpus.report.calibration.bytes + corpus.report.held_out.bytes, 360000);
  EXPECT_NE(corpus.report.notes.back().find("texts, not requests"), std::string::npos);
}

TEST_F(CorpusTest, OfOneDocumentTheEndIsHeldOutBehindAGap) {
  const std::string text = Words(1, 200000);
  const Corpus corpus = Read(Options({Write("one.txt", text)}));
  ASSERT_EQ(corpus.calibration.size(), 1u);
  ASSERT_EQ(corpus.held_out.size(), 1u);
  const std::string &a = corpus.calibration[0].text, &b = corpus.held_out[0].text;
  EXPECT_TRUE(text.starts_with(a) && text.ends_with(b));
  EXPECT_GE(text.size() - a.size() - b.size(), 3000u);
  EXPECT_NEAR(static_cast<double>(b.size()) / static_cast<double>(text.size()), 0.25, 0.03);
  EXPECT_EQ(corpus.report.notes[0].rfind("there is one document only", 0), 0u);

  CorpusOptions whole = Options({Write("one.txt", text)});
  whole.held_out_share = 0;
  EXPECT_EQ(Read(whole).calibration[0].text, text);
}

// The side of everything that was kept: what stands on both, or moves when `options` change, is
// what a calibration must not have seen.
std::map<std::string, bool> Sides(const Corpus& corpus) {
  std::map<std::string, bool> held_out;
  const auto add = [&](const std::vector<CorpusItem>& items, bool is_held) {
    for (const CorpusItem& item : items) {
      const std::string what = item.messages.empty() ? item.text : item.messages[0].content;
      EXPECT_TRUE(held_out.emplace(what, is_held).second) << item.name << " stands on both sides";
    }
  };
  add(corpus.calibration, false);
  add(corpus.held_out, true);
  return held_out;
}

TEST_F(CorpusTest, ARequestStaysOnItsSideWhateverIsKeptAndInWhateverOrder) {
  // Behind one template, which is no reason to put all of them on one side; of every length.
  const std::string letter =
      "Answer this letter politely and in no more than three sentences. " + std::string(250, '-');
  std::string first, second;
  for (int i = 0; i < 600; ++i) {
    const std::string line = Chat({letter + Words(i + 1, 1000 + 10 * (i % 50))});
    (i % 3 == 0 ? first : second) += line;
  }
  // A document that is asked about four times.
  for (int i = 0; i < 4; ++i) second += Chat({Words(7777, 3000) + StrCat(" Question ", i)}, "yes");
  CorpusOptions options = Options({Write("a.jsonl", first), Write("b.jsonl", second)});
  options.shared_prefix = 1;
  const Corpus whole = Read(options);
  const std::map<std::string, bool> sides = Sides(whole);
  EXPECT_EQ(sides.size(), 604u);
  const double share =
      static_cast<double>(whole.report.held_out.bytes) /
      static_cast<double>(whole.report.held_out.bytes + whole.report.calibration.bytes);
  EXPECT_NEAR(share, 0.25, 0.06);
  std::set<bool> about_one_document;
  for (const auto& [text, held] : sides) {
    if (text.find(" Question ") != std::string::npos) about_one_document.insert(held);
  }
  EXPECT_EQ(about_one_document.size(), 1u);

  for (const int64_t max_tokens : {400, 2000, 30000, 100000}) {
    for (const int64_t context : {512, 8192}) {
      CorpusOptions small = options;
      small.max_tokens = max_tokens;
      small.context_len = context;
      std::swap(small.paths[0], small.paths[1]);
      const Corpus corpus = Read(small);
      EXPECT_FALSE(corpus.calibration.empty()) << max_tokens;
      EXPECT_FALSE(corpus.held_out.empty()) << max_tokens;
      for (const auto& [text, held] : Sides(corpus)) EXPECT_EQ(held, sides.at(text));
    }
  }
}

TEST_F(CorpusTest, FewDocumentsGiveBothSidesAndKeepThemUnderAnyBudget) {
  for (int i = 0; i < 3; ++i) Write(StrCat("docs/", i), Words(i + 1, 10000 + 300000 * i));
  // A later state of a document, and a copy.
  Write("docs/later", Words(3, 610000) + Words(9, 50000));
  Write("docs/copy", Words(2, 310000));
  CorpusOptions options = Options({(folder_ / "docs").string()});
  const auto document_of = [](const CorpusItem& item) {
    return item.name.substr(0, item.name.find(','));
  };
  std::map<std::string, bool> sides;
  const Corpus whole = Read(options);
  for (const auto* part : {&whole.calibration, &whole.held_out}) {
    for (const CorpusItem& item : *part) sides[document_of(item)] = part == &whole.held_out;
  }
  EXPECT_EQ(sides.size(), 4u);
  EXPECT_EQ(sides.at((folder_ / "docs/2").string()), sides.at((folder_ / "docs/later").string()));
  for (const int64_t max_tokens : {1000, 5000, 20000, 80000}) {
    options.max_tokens = max_tokens;
    const Corpus corpus = Read(options);
    EXPECT_LE(corpus.report.calibration.bytes + corpus.report.held_out.bytes, 8 * max_tokens);
    ASSERT_FALSE(corpus.calibration.empty()) << max_tokens;
    ASSERT_FALSE(corpus.held_out.empty()) << max_tokens;
    for (const CorpusItem& item : corpus.calibration) EXPECT_FALSE(sides.at(document_of(item)));
    for (const CorpusItem& item : corpus.held_out) EXPECT_TRUE(sides.at(document_of(item)));
  }
}

// Where its parts lie in the file does not depend on how much of it is kept.
TEST_F(CorpusTest, ASingleDocumentIsCutAtOnePlaceUnderAnyBudget) {
  const std::string text = Words(1, 900000);
  CorpusOptions options = Options({Write("one.txt", text)});
  options.redactions = {{"[a-d]{2,}", "<>"}};  // texts are shorter than the file, not evenly
  const Corpus whole = Read(options);
  ASSERT_EQ(whole.calibration.size(), 1u);
  ASSERT_EQ(whole.held_out.size(), 1u);
  for (const int64_t max_tokens : {300, 3000, 20000, 90000}) {
    for (const int64_t context : {512, 8192}) {
      options.max_tokens = max_tokens;
      options.context_len = context;
      const Corpus corpus = Read(options);
      ASSERT_FALSE(corpus.calibration.empty());
      ASSERT_FALSE(corpus.held_out.empty());
      for (const CorpusItem& item : corpus.calibration) {
        EXPECT_NE(whole.calibration[0].text.find(item.text), std::string::npos) << item.name;
      }
      for (const CorpusItem& item : corpus.held_out) {
        EXPECT_NE(whole.held_out[0].text.find(item.text), std::string::npos) << item.name;
      }
    }
  }
}

TEST_F(CorpusTest, RequestsThatAllBeginAlikeAreDividedAllTheSame) {
  std::string log;
  const std::string one = Words(5, 2000);
  for (int i = 0; i < 12; ++i) log += Chat({one + Words(100 + i, 300)});
  CorpusOptions options = Options({Write("a.jsonl", log)});
  options.shared_prefix = 1;
  const Corpus corpus = Read(options);
  EXPECT_EQ(corpus.calibration.size() + corpus.held_out.size(), 12u);
  EXPECT_GE(corpus.held_out.size(), 2u);
  EXPECT_LE(corpus.held_out.size(), 4u);
  ASSERT_EQ(corpus.report.notes.size(), 1u);
  EXPECT_EQ(corpus.report.notes[0].rfind("all requests begin alike", 0), 0u);

  const Corpus single = Read(Options({Write("b.jsonl", Chat({one}))}));
  EXPECT_EQ(single.calibration.size(), 1u);
  EXPECT_EQ(single.report.notes,
            std::vector<std::string>{"there is one request only: nothing is held out"});
}

// A log far larger than what may be kept: a sample of it, within the bound.
TEST_F(CorpusTest, TheSampleIsBoundedAndSpread) {
  CorpusOptions options =
      Options({Write("a.jsonl", Log(3000, 1000)), Write("t", Words(5, 3000000))});
  options.max_tokens = 40000;
  const Corpus corpus = Read(options);
  const CorpusReport& r = corpus.report;
  EXPECT_LE(r.calibration.bytes + r.held_out.bytes, 320000);
  EXPECT_GT(r.calibration.bytes + r.held_out.bytes, 200000);
  EXPECT_GT(r.not_sampled, 2000);
  std::vector<int> lines;
  for (const auto* part : {&corpus.calibration, &corpus.held_out}) {
    for (const CorpusItem& item : *part) {
      if (item.kind == CorpusItem::Kind::kChat) {
        lines.push_back(std::stoi(item.name.substr(item.name.rfind(' ') + 1)));
      }
    }
  }
  ASSERT_GT(lines.size(), 30u);
  double mean = 0;
  for (const int line : lines) mean += line / static_cast<double>(lines.size());
  EXPECT_NEAR(mean, 1500, 500);
}

TEST_F(CorpusTest, ADamagedArchiveGivesWhatStandsBefore) {
  std::string packed = Gzip(Log(2000));
  packed.resize(packed.size() / 2);
  const Corpus corpus = Read(Options({Write("a.jsonl.gz", packed)}));
  EXPECT_GT(corpus.report.lines, 500);
  EXPECT_LT(corpus.report.lines, 1500);
  EXPECT_EQ(corpus.report.skipped[0].reason, "the file is damaged; what stands before is used");
}

TEST_F(CorpusTest, TextsThatAreNotUtf8AreSkipped) {
  const std::string good = Write("good.txt", "Gr\xC3\xBC\xC3\x9F Gott\n");
  const Corpus corpus = Read(Options({Write("latin.txt", "Gr\xFC\xDF Gott\n"), good}));
  ASSERT_EQ(corpus.report.skipped.size(), 1u);
  EXPECT_EQ(corpus.report.skipped[0].reason, "the file is not UTF-8 text; convert it with iconv");
}

TEST_F(CorpusTest, ReadingCanBeStopped) {
  CorpusOptions options = Options({Write("a.jsonl", Log(1000))});
  options.progress = [](size_t done, size_t, const std::string&) { return done < 1; };
  EXPECT_EQ(ReadCorpus(options).status().code(), StatusCode::kCancelled);
}

class ChatTokenizer : public ByteTokenizer {
 public:
  explicit ChatTokenizer(const std::string& chat_template) { chat_template_ = chat_template; }
};

std::string Text(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens, size_t from,
                 size_t to) {
  std::string out;
  for (size_t i = from; i < to; ++i) out += tokenizer.TokenBytes(tokens[i]);
  return out;
}

TEST(CorpusEncoder, AConversationEndsWithItsAnswer) {
  const ChatTokenizer tokenizer(
      "{% for m in messages %}({{ m.role }}){{ m.content }}<end>{% endfor %}"
      "{% if add_generation_prompt %}(assistant){% endif %}");
  const auto encoder = CorpusEncoder::Create(tokenizer);
  ASSERT_TRUE(encoder.ok()) << encoder.status().ToString();
  CorpusItem item;
  item.kind = CorpusItem::Kind::kChat;
  item.messages = {{"developer", "be brief"}, {"user", "hi"}};
  const auto open = encoder->Encode(item);
  ASSERT_TRUE(open.ok()) << open.status().ToString();
  EXPECT_EQ(open->prompt_len, open->tokens.size());
  EXPECT_FALSE(open->is_text);
  item.answer = RecordedAnswer{"hello", "", "stop"};
  const auto whole = encoder->Encode(item);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(Text(tokenizer, whole->tokens, 0, whole->prompt_len),
            "(system)be brief<end>(user)hi<end>(assistant)");
  EXPECT_EQ(Text(tokenizer, whole->tokens, whole->prompt_len, whole->tokens.size()), "hello<end>");
  EXPECT_EQ(whole->tokens.back(), tokenizer.eos());
  // An answer that was cut off has no end.
  item.answer->finish_reason = "length";
  EXPECT_EQ(encoder->Encode(item)->tokens.size(), whole->tokens.size() - 1);
  item.answer->tool_calls = "[{}]";
  const auto call = encoder->Encode(item);
  EXPECT_EQ(Text(tokenizer, call->tokens, call->prompt_len, call->tokens.size()), "hello\n[{}]");
}

TEST(CorpusEncoder, WithoutATemplateAndWithOneThatRefuses) {
  CorpusItem item;
  item.kind = CorpusItem::Kind::kChat;
  item.name = "log, line 7";
  item.messages = {{"user", std::string(40, 'a')}};
  item.answer = RecordedAnswer{"b", "", ""};
  const ByteTokenizer bytes;
  const auto plain = CorpusEncoder::Create(bytes);
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->has_template());
  const auto joined = plain->Encode(item);
  EXPECT_EQ(Text(bytes, joined->tokens, 0, joined->tokens.size()),
            std::string(40, 'a') + "\n\nb<end>");

  const ChatTokenizer strict("{{ raise_exception('only system here') }}");
  CorpusItem text;
  text.text = std::string(100, 't');
  const auto encoder = CorpusEncoder::Create(strict);
  const auto packed = PackWindows(*encoder, {item, text}, 64, 0, 0);
  ASSERT_TRUE(packed.ok()) << packed.status().ToString();
  EXPECT_EQ(packed->report.sequences, 1);
  ASSERT_EQ(packed->report.skipped.size(), 1u);
  EXPECT_EQ(packed->report.skipped[0].example, "log, line 7");
  EXPECT_NE(packed->report.skipped[0].reason.find("only system here"), std::string::npos);
  const Status none = PackWindows(*encoder, {item}, 64, 0, 0).status();
  EXPECT_EQ(none.code(), StatusCode::kDataLoss);
  EXPECT_NE(none.message().find("log, line 7"), std::string::npos) << none.message();
}

TokenSequence Sequence(int first, size_t length, bool is_text = false, bool has_bos = false) {
  TokenSequence s;
  for (size_t i = 0; i < length; ++i) s.tokens.push_back(first + static_cast<int>(i));
  s.is_text = is_text;
  s.has_bos = has_bos;
  return s;
}

TEST(PackWindows, LongTextsAreCutShortOnesJoinedLongRequestsEnd) {
  const auto out = PackWindows({Sequence(0, 250, true, true), Sequence(1000, 150),
                                Sequence(2000, 40), Sequence(3000, 60), Sequence(4000, 5, true)},
                               100, 0, 0);
  ASSERT_TRUE(out.ok()) << out.status().ToString();
  const WindowsReport& r = out->report;
  // 100, 100 and 52 of the text, each with its BOS; 100 of the request; 40 + 60; 5 with the 52.
  ASSERT_EQ(out->windows.size(), 5u);
  EXPECT_EQ(out->windows[0].size(), 100u);
  EXPECT_EQ(out->windows[1][0], 0);
  EXPECT_EQ(out->windows[1][1], 100);
  EXPECT_EQ(out->windows[2].size(), 57u);
  EXPECT_EQ(out->windows[3].back(), 1099);
  EXPECT_EQ(out->windows[4].size(), 100u);
  EXPECT_EQ(r.tokens, 457);
  EXPECT_EQ(r.sequences, 5);
  EXPECT_EQ(r.median, 60);
  EXPECT_EQ(r.max, 250);
  EXPECT_EQ(r.full_length, 2);
  EXPECT_EQ(r.cut, 2);
  EXPECT_EQ(r.cut_tokens, 50);
  EXPECT_EQ(r.joined, 4);
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_EQ(r.warnings[0].rfind("only 457 tokens: under 50,000", 0), 0u);
}

TEST(PackWindows, TakesAsManyWindowsAsMayBe) {
  std::vector<TokenSequence> sequences;
  for (int i = 0; i < 50; ++i) sequences.push_back(Sequence(100 * i, 100));
  const auto out = PackWindows(sequences, 100, 1000, 3);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->report.tokens, 1000);
  EXPECT_EQ(out->report.left_out_tokens, 4000);
  EXPECT_TRUE(std::is_sorted(out->windows.begin(), out->windows.end()));
  EXPECT_GT(out->windows.back()[0], 1000);  // not just the first ones
  EXPECT_NE(out->windows, PackWindows(sequences, 100, 1000, 4)->windows);
  const auto one = PackWindows(sequences, 100, 70, 3);
  ASSERT_EQ(one->windows.size(), 1u);
  EXPECT_EQ(one->windows[0].size(), 70u);
}

TEST(PackWindows, WarnsWhenNothingIsAsLongAsServed) {
  const auto out = PackWindows({Sequence(0, 90)}, 2048, 0, 0);
  ASSERT_TRUE(out.ok());
  ASSERT_EQ(out->report.warnings.size(), 2u);
  EXPECT_EQ(out->report.warnings[1].rfind("none is as long as the served context of 2,048", 0), 0u);
  // Few tokens are no risk to who only measures.
  const auto evaluated = PackWindows({Sequence(0, 90)}, 2048, 0, 0, WindowsUse::kEvaluation);
  ASSERT_EQ(evaluated->report.warnings.size(), 1u);
  EXPECT_EQ(evaluated->report.warnings[0].rfind("none is as long", 0), 0u);
  EXPECT_EQ(PackWindows({Sequence(0, 9)}, 2048, 0, 0).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(PackWindows({Sequence(0, 90)}, 8, 0, 0).status().code(), StatusCode::kInvalidArgument);
}

TEST(PackWindows, CountsAPromptThatIsAnsweredTwiceOnce) {
  TokenSequence first = Sequence(0, 70), second = Sequence(0, 70), other = Sequence(500, 70);
  for (TokenSequence* s : {&first, &second, &other}) s->prompt_len = 60;
  second.tokens.back() = 999;  // another answer
  const auto out = PackWindows({first, other, second}, 100, 0, 0);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->report.tokens, 210);
  EXPECT_EQ(out->report.repeated_tokens, 60);
  EXPECT_EQ(out->report.warnings[0].rfind("only 150 different tokens: under 50,000", 0), 0u)
      << out->report.warnings[0];
  EXPECT_NE(WindowsText(out->report).find("60 tokens of prompts that come again"),
            std::string::npos);
}

TEST(WindowsText, NamesNoFlagThatMayNotHaveCutIt) {
  WindowsReport r;
  r.windows = r.sequences = 1;
  r.left_out_tokens = 1200;
  const std::string text = WindowsText(r);
  EXPECT_NE(text.find("1,200 tokens left out, beyond what was asked for"), std::string::npos)
      << text;
  EXPECT_NE(text.find("in 1 window of"), std::string::npos) << text;
}

}  // namespace
}  // namespace tq
