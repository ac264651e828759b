#include "runtime/evaluate/blame.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/evaluate/fakes_for_test.h"

namespace tq {
namespace {

class BlameTest : public testing::Test {
 protected:
  BlameOptions Options(CacheConfig config) {
    BlameOptions o;
    o.reference = {"f16", &model_, model_.Config("f16")};
    o.candidate = {"candidate", &model_, std::move(config)};
    o.worst_share = 1;
    uint64_t seed = 5;
    EvalText& text = o.texts.emplace_back();
    for (int w = 0; w < 2; ++w) {
      std::vector<TokenId>& window = text.windows.emplace_back();
      while (window.size() < 900) window.push_back(static_cast<TokenId>(SplitMix64(seed) % 256));
    }
    return o;
  }

  ThreadPool pool_{2};
  TinyModel model_{pool_};
};

// One head that is far coarser than all others must be what is blamed.
TEST_F(BlameTest, FindsThePlantedHead) {
  CacheConfig config = model_.Config("k8v8");
  config.formats[3] = *ParsePreset("k2v8");  // layer 1, head 1
  const Result<BlameResult> r = RunBlame(Options(config));
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  // Random bytes are not predicted by the plain model either, and the result says so.
  EXPECT_FALSE(r->informative);
  ASSERT_EQ(r->layers.size(), 1u);  // all others have 8 bits already
  EXPECT_EQ(r->layers[0].site.layer, 1);
  EXPECT_EQ(r->layers[0].pin, "1:1=k8v8");
  EXPECT_GT(r->layers[0].recovered, 0.5 * r->kld);
  ASSERT_EQ(r->sides.size(), 1u);
  EXPECT_TRUE(r->sides[0].site.k);
  EXPECT_FALSE(r->sides[0].site.v);
  ASSERT_EQ(r->heads.size(), 1u);
  EXPECT_EQ(r->heads[0].site.head, 1);
  EXPECT_GT(r->heads[0].cost_bytes, 0);
  EXPECT_NEAR(r->kld - r->heads[0].kld, r->heads[0].recovered, 1e-9);
  EXPECT_EQ(r->joint.pin, "1:1=k8v8");
  EXPECT_NEAR(r->joint.kld, r->layers[0].kld, 1e-12);
}

TEST_F(BlameTest, RanksEveryLayerSideAndHead) {
  const Result<BlameResult> r = RunBlame(Options(model_.Config("k2v2")));
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_EQ(r->layers.size(), 2u);
  EXPECT_EQ(r->sides.size(), 4u);
  EXPECT_EQ(r->heads.size(), 4u);
  EXPECT_GE(r->layers[0].recovered, r->layers[1].recovered);
  for (const BlameEntry& e : r->sides) EXPECT_LT(e.cost_bits, r->layers[0].cost_bits);
  const auto j = BlameJson(*r);
  EXPECT_EQ(j["layers"].size(), 2u);
  EXPECT_EQ(j["sides"][0]["side"].get<std::string>().size(), 1u);
  EXPECT_TRUE(j["heads"][0].contains("head"));
  const std::string html = BlameSection(*r);
  EXPECT_NE(html.find("K and V of the worst layers"), std::string::npos);
  ASSERT_FALSE(r->joint.pin.empty());
  EXPECT_EQ(j["joint"]["note"], kJointNote);
  EXPECT_NE(html.find(kJointNote), std::string::npos);
}

// Where even the layer that recovers the most may do so by chance, nothing is recommended.
TEST_F(BlameTest, NamesNoPinsThatMayBeChance) {
  BlameOptions o = Options(model_.Config("k8v8"));
  for (HeadFormat& f : o.candidate.config.formats) f.k = ParsePreset("k6v8")->k;
  o.texts[0].windows.resize(1);
  o.texts[0].windows[0].resize(400);
  const Result<BlameResult> r = RunBlame(o);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  const BlameEntry& most = r->layers[0];
  ASSERT_LT(most.recovered, ClearErrors(2) * most.recovered_stderr) << "or nothing is shown";
  EXPECT_EQ(r->joint.pin, "");
  EXPECT_FALSE(BlameJson(*r).contains("joint"));
}

// The figures come from sums that are kept while the text streams by: the same as those of all
// scores, whatever is in memory at once.
TEST_F(BlameTest, FiguresAreThoseOfAllScores) {
  BlameOptions options = Options(model_.Config("k3v2"));
  options.measure.at_once = 2;  // the candidate and the layers are in different groups
  const Result<BlameResult> r = RunBlame(options);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  for (const BlameEntry& e : r->layers) {
    const Stream streams[] = {
        options.candidate,
        {"restored", &model_, RestoreSite(options.candidate.config, e.site, 8)->config}};
    const auto scores = MeasureDivergence(options.reference, streams, options.texts[0].windows, {});
    ASSERT_TRUE(scores.ok());
    const StreamScores &base = (*scores)[0], &restored = (*scores)[1];
    RunningMean difference;
    for (size_t p = 0; p < base.scores.size(); ++p) {
      difference.Add(base.scores[p].kld - restored.scores[p].kld);
    }
    EXPECT_EQ(e.recovered, difference.mean());
    EXPECT_EQ(e.recovered_stderr,
              std::max(difference.stderr_of_mean(), OverWindows(base, restored).stderr_of_mean()));
    EXPECT_EQ(e.kld, restored.kld.mean());
    EXPECT_EQ(r->kld_stderr, Summarize(base.scores, base.window_positions).mean_stderr);
  }
}

TEST_F(BlameTest, NothingToRestoreIsRefused) {
  const Result<BlameResult> r = RunBlame(Options(model_.Config("k8v8")));
  EXPECT_EQ(r.status().message(), "candidate has no layer below 8 bit that could be restored");
  EXPECT_EQ(r.status().code(), StatusCode::kInvalidArgument);
}

// P(N(0, 1) > 3.17) = 0.0228 / 30.
TEST(ClearErrors, GrowWithTheFiguresThatAreTried) {
  EXPECT_NEAR(ClearErrors(1), 2, 1e-6);
  EXPECT_NEAR(ClearErrors(30), 3.17, 0.005);
  EXPECT_GT(ClearErrors(90), ClearErrors(30));
}

TEST(RestoreSite, GivesThePinOfEachPart) {
  CacheConfig c;
  c.num_layers = 2;
  c.num_kv_heads = 3;
  c.head_dim = 64;
  c.formats.assign(6, *ParsePreset("k3v2"));
  EXPECT_EQ(RestoreSite(c, {1}, 8)->pin, "1=k8v8");
  EXPECT_EQ(RestoreSite(c, {1, -1, true, false}, 8)->pin, "1=k8v2");
  EXPECT_EQ(RestoreSite(c, {0, 2, false, true}, 8)->pin, "0:2=k3v8");
  EXPECT_EQ(RestoreSite(c, {0}, 16)->pin, "0=f16");
  c.formats[4] = *ParsePreset("k4v2");
  EXPECT_EQ(RestoreSite(c, {1, -1, false, true}, 8)->pin, "1:0,2=k3v8;1:1=k4v8");
  c.formats.assign(6, *ParsePreset("k3v2-trellis"));
  const Result<RestoredSite> trellis = RestoreSite(c, {0, -1, true, false}, 8);
  ASSERT_TRUE(trellis.ok()) << trellis.status().ToString();
  const HeadFormat f = trellis->config.formats[0];
  EXPECT_EQ(f.k.bits, 8);
  EXPECT_EQ(f.v.bits, 2);
  // The pin gives the very format that was measured.
  EXPECT_EQ(*ParsePreset(trellis->pin.substr(2)), f);
  EXPECT_EQ(RestoreSite(c, {0, -1, true, false}, 2).status().message(),
            "K of layer 0 has nothing below 2 bit");
}

}  // namespace
}  // namespace tq
