#include "runtime/evaluate/compare.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/fakes_for_test.h"
#include "runtime/evaluate/results_json.h"

namespace tq {
namespace {

class CompareTest : public testing::Test {
 protected:
  CompareOptions Options(const std::vector<std::string>& formats) {
    CompareOptions o;
    o.plain = {"f16", model_.Config("f16")};
    o.floor = {"k8v8", model_.Config("k8v8")};
    for (const std::string& f : formats) o.formats.push_back({f, model_.Config(f)});
    o.context = 1200;
    o.answer_tokens = 20;
    return o;
  }
  Document MakeDocument(int64_t max_tokens = 1180) {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "Verse " + std::to_string(i * i) + " says so.\n";
    DocumentOptions o;
    o.name = "verses";
    o.text = text;
    o.max_tokens = max_tokens;
    Result<Document> doc = BuildDocument(tokenizer_, o);
    EXPECT_TRUE(doc.ok()) << doc.status().ToString();
    return *doc;
  }

  ThreadPool pool_{2};
  TinyModel model_{pool_};
  ByteTokenizer tokenizer_;
};

TEST_F(CompareTest, FewerBitsMeanMoreDivergenceAndFewerBytes) {
  const Document doc = MakeDocument();
  const Result<CompareResult> r =
      Compare(model_, tokenizer_, doc, Options({"f16", "k8v8", "k4v4", "k2v2"}));
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  ASSERT_EQ(r->rows.size(), 4u);
  EXPECT_EQ(r->tokens, static_cast<int64_t>(doc.tokens.size()));
  for (size_t i = 0; i < 4; ++i) {
    const CompareRow& row = r->rows[i];
    // Every position once, although some were read token by token to be timed.
    EXPECT_EQ(row.all.positions, r->tokens) << row.name;
    EXPECT_EQ(row.all.targets, r->tokens - 1);
    EXPECT_EQ(row.by_depth.size(), 4u);
    EXPECT_GT(row.decode_ms, 0);
    EXPECT_GT(row.ratio_at_131072, 0.9);
    if (i > 0) {
      EXPECT_LT(row.bytes.total(), r->rows[i - 1].bytes.total());
    }
  }
  EXPECT_TRUE(r->rows[0].is_plain);
  EXPECT_EQ(r->rows[0].all.mean, 0);
  EXPECT_EQ(r->rows[0].all.ppl_q, r->rows[3].all.ppl_ref);
  EXPECT_GT(r->rows[1].all.mean, 0);
  EXPECT_LT(r->rows[1].all.mean, r->rows[2].all.mean);
  EXPECT_LT(r->rows[2].all.mean, r->rows[3].all.mean);
  EXPECT_EQ(r->floor.mean, r->rows[1].all.mean);
  for (const CompareRow& row : r->rows) EXPECT_TRUE(row.on_pareto_front) << row.name;
  // Positions of the first blocks have nothing quantized behind them.
  EXPECT_LT(r->rows[3].behind.positions, r->rows[3].all.positions);
}

TEST_F(CompareTest, FloorIsMeasuredWithoutARow) {
  const Result<CompareResult> r = Compare(model_, tokenizer_, MakeDocument(400), Options({"k4v4"}));
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  ASSERT_EQ(r->rows.size(), 1u);
  EXPECT_EQ(r->floor_name, "k8v8");
  EXPECT_GT(r->floor.mean, 0);
}

TEST_F(CompareTest, JsonKeysOfOneAndOfSeveralFormats) {
  const Result<CompareResult> one =
      Compare(model_, tokenizer_, MakeDocument(300), Options({"f16", "k3v2"}));
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  const nlohmann::ordered_json j = CompareJson(*one, "avx2");
  for (const char* key : {"/model",
                          "/tokens",
                          "/kv",
                          "/cache/f16_bytes",
                          "/cache/bytes",
                          "/cache/payload_bytes",
                          "/cache/window_bytes",
                          "/cache/ratio",
                          "/cache/ratio_sealed",
                          "/cache/bits_per_value",
                          "/kld/mean",
                          "/kld/p99",
                          "/kld/max",
                          "/floor/kld_mean",
                          "/same_top",
                          "/ppl/f16",
                          "/ppl/quantized",
                          "/ppl/ratio",
                          "/decode_ms/f16",
                          "/decode_ms/quantized",
                          "/answers/f16",
                          "/answers/quantized",
                          "/kernel",
                          "/isa"}) {
    EXPECT_TRUE(j.contains(nlohmann::ordered_json::json_pointer(key))) << key;
  }
  EXPECT_EQ(j["kv"], "k3v2");
  EXPECT_EQ(j["cache"]["bytes"].get<size_t>(), j["cache"]["payload_bytes"].get<size_t>() +
                                                   j["cache"]["scales_bytes"].get<size_t>() +
                                                   j["cache"]["window_bytes"].get<size_t>() +
                                                   j["cache"]["tables_bytes"].get<size_t>());

  const Result<CompareResult> two =
      Compare(model_, tokenizer_, MakeDocument(300), Options({"k4v4", "k3v2"}));
  ASSERT_TRUE(two.ok());
  const nlohmann::ordered_json rows = CompareJson(*two, "avx2");
  ASSERT_EQ(rows["rows"].size(), 2u);
  EXPECT_EQ(rows["rows"][1]["kv"], "k3v2");
  EXPECT_FALSE(rows.contains("kv"));
}

TEST_F(CompareTest, SaysWhatDoesNotFit) {
  const Document doc = MakeDocument();
  CompareOptions options = Options({"k4v4"});
  options.context = 1000;
  const Status status = Compare(model_, tokenizer_, doc, options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "a document of " + std::to_string(doc.tokens.size()) +
                                  " tokens and an answer of 20 do not fit a context of 1000");
}

TEST_F(CompareTest, StopsWhenAsked) {
  std::atomic<bool> stop{true};
  CompareOptions options = Options({"k4v4"});
  options.cancel = &stop;
  EXPECT_EQ(Compare(model_, tokenizer_, MakeDocument(), options).status().code(),
            StatusCode::kCancelled);
  options.cancel = nullptr;
  options.progress = [](size_t done, size_t total, const std::string&) { return done < total / 2; };
  EXPECT_EQ(Compare(model_, tokenizer_, MakeDocument(), options).status().code(),
            StatusCode::kCancelled);
}

TEST(ParetoFront, OnlyRowsThatNobodyBeats) {
  std::vector<CompareRow> rows(4);
  const double bits[] = {4, 3, 3, 5}, kld[] = {0.1, 0.2, 0.3, 0.1};
  for (size_t i = 0; i < 4; ++i) {
    rows[i].bits_per_value = bits[i];
    rows[i].all.mean = kld[i];
  }
  MarkParetoFront(&rows);
  EXPECT_TRUE(rows[0].on_pareto_front);
  EXPECT_TRUE(rows[1].on_pareto_front);
  EXPECT_FALSE(rows[2].on_pareto_front);  // as many bits as 1, larger KL
  EXPECT_FALSE(rows[3].on_pareto_front);  // the KL of 0 with more bits
}

}  // namespace
}  // namespace tq
