#include "runtime/calibrate/calibrate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "runtime/calibrate/plain.h"
#include "runtime/calibrate/planted_for_test.h"
#include "runtime/calibrate/responses.h"
#include "runtime/calibrate/site_runs.h"
#include "runtime/evaluate/fakes_for_test.h"
#include "turboquant/base/file.h"

namespace tq {
namespace {

using namespace planted;  // NOLINT(google-build-using-namespace)

double Bits(const CalibrateResult& r, int layer, int head, Side side) {
  const HeadFormat& f = r.profile.formats[static_cast<size_t>(layer * kHeads + head)];
  return (side == Side::kK ? f.k : f.v).bits;
}

TEST(Calibrate, APlantedLayerIsFoundAndRaised) {
  Planted planted;
  // Sharp attention that counts: what an error of a key does grows with the query.
  planted.ScaleAll("blk.2.attn_q.weight", 4);
  planted.ScaleAll("blk.2.attn_q.bias", 4);
  planted.ScaleAll("blk.2.attn_output.weight", 6);
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.budget_bits = 2.67;  // the floor, and one bit more for one side of one layer
  o.granularity = Granularity::kLayer;
  const auto r = Calibrate(model, SomeWindows(4, 1), SomeWindows(3, 2), o);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  for (const int other : {0, 1, 3}) {
    EXPECT_GT(r->layers[2].k_kld, 2 * r->layers[static_cast<size_t>(other)].k_kld) << other;
    EXPECT_GT(
        r->layers[2].k_bits + r->layers[2].v_bits,
        r->layers[static_cast<size_t>(other)].k_bits + r->layers[static_cast<size_t>(other)].v_bits)
        << other;
  }
  EXPECT_LE(r->chosen.bits, 2.67);
  // On text that nothing was chosen by, it beats the uniform format of as many bytes.
  EXPECT_FALSE(r->kept_uniform);
  EXPECT_LE(r->uniform_bits, r->chosen.bits);
  EXPECT_LT(r->held_out.kld.mean(), 0.8 * r->held_out_uniform.kld.mean());
  EXPECT_EQ(r->profile.quality->held_out_tokens, 3 * 420);
  // How well each was measured stands beside it.
  const CalibrateLayer& found = r->layers[2];
  EXPECT_GT(found.k_stderr, 0);
  const std::string cell = fmt::format("{:.6f} \u00b1 {:.6f}", found.k_kld, found.k_stderr);
  EXPECT_NE(CalibrateText(*r).find(cell), std::string::npos) << CalibrateText(*r);
  EXPECT_NE(CalibrateSection(*r).find("<td>" + cell + "</td>"), std::string::npos);
  EXPECT_EQ(CalibrateJson(*r)["by_layer"][2]["k_kld_stderr"].get<double>(), found.k_stderr);
}

TEST(Calibrate, APlantedHeadIsFoundAndRaised) {
  Planted planted;
  // What head 1 of layer 1 says counts six times as much.
  planted.Scale("blk.1.attn_output.weight", 6, kHeads * kGroup * kDim, kGroup * kDim,
                2 * kGroup * kDim);
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.budget_bits = 3.6;
  o.granularity = Granularity::kHead;
  const auto r = Calibrate(model, SomeWindows(4, 1), SomeWindows(3, 2), o);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_GT(Bits(*r, 1, 1, Side::kV), Bits(*r, 1, 0, Side::kV));
  for (const int layer : {0, 2, 3}) {
    EXPECT_GT(Bits(*r, 1, 1, Side::kV), Bits(*r, layer, 0, Side::kV)) << layer;
  }
  EXPECT_LT(r->held_out.kld.mean(), r->held_out_uniform.kld.mean());
}

TEST(Calibrate, ReachesATargetWithFewerBitsWhenMoreIsAllowed) {
  Planted planted;
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.base = *ParsePreset("k3v2-anchor1");
  Journal journal;  // what was measured serves all
  o.journal = &journal;
  o.target_kld = 1e-2;
  const auto loose = Calibrate(model, SomeWindows(4, 1), SomeWindows(3, 2), o);
  ASSERT_TRUE(loose.ok()) << loose.status().ToString();
  EXPECT_EQ(loose->profile.formats[0].anchors, 1);
  o.target_kld = 0.2 * loose->chosen.kld();
  const auto strict = Calibrate(model, SomeWindows(4, 1), SomeWindows(3, 2), o);
  ASSERT_TRUE(strict.ok()) << strict.status().ToString();
  EXPECT_LT(loose->chosen.bits, strict->chosen.bits);
  EXPECT_LT(strict->held_out.kld.mean(), loose->held_out.kld.mean());
  // Out of reach: the best that there is, which does not pass, and why.
  o.target_kld = 1e-9;
  const auto best = Calibrate(model, SomeWindows(4, 1), SomeWindows(3, 2), o);
  ASSERT_TRUE(best.ok()) << best.status().ToString();
  EXPECT_FALSE(best->profile.quality->passed);
  EXPECT_GE(best->chosen.bits, strict->chosen.bits);
  EXPECT_TRUE(std::any_of(best->log.begin(), best->log.end(), [](const std::string& line) {
    return line.find("was not reached") != std::string::npos;
  }));
}

// Whatever the shapes, and however far the prediction is off: if any measured allocation is within
// the target, one is chosen that is, and hardly any bits are left that could be saved.
TEST(Calibrate, ReachesWhatCanBeReached) {
  Planted planted;
  // Values that cost much and are predicted badly: weights on V mislead the search.
  planted.ScaleAll("blk.1.attn_output.weight", 5);
  Model& model = planted.Load();
  Journal journal;
  for (const double target : {3e-2, 1e-2, 3e-3, 1e-3}) {
    CalibrateOptions o = Options(planted);
    o.journal = &journal;
    o.target_kld = target;
    const auto r = Calibrate(model, SomeWindows(4, 1), SomeWindows(3, 2), o);
    ASSERT_TRUE(r.ok()) << r.status().ToString();
    bool within = false;
    for (const CalibrateTrial& t : r->trials) within = within || t.kld() <= target;
    EXPECT_TRUE(within) << target;
    EXPECT_LE(r->chosen.kld(), target);
    for (const CalibrateTrial& t : r->trials) {
      if (t.name.rfind("uniform", 0) == 0 || t.name.find("aligned") != std::string::npos) continue;
      if (t.kld() > target) continue;
      EXPECT_LE(r->chosen.bits, t.bits + 0.3) << target << ' ' << t.name;
    }
  }
}

// Stopped again and again, at whatever point: the profile is the same in every byte.
TEST(Calibrate, ResumedEqualsUninterrupted) {
  Planted planted;
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.budget_bits = 3.2;
  const auto calibration = SomeWindows(4, 1), held_out = SomeWindows(3, 2);
  const auto whole = Calibrate(model, calibration, held_out, o);
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();

  char folder[] = "/tmp/tq_calibrate_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/x.state";
  int runs = 0;
  for (bool finished = false; !finished; ++runs) {
    ASSERT_LT(runs, 100);
    std::string note;
    auto journal = Journal::Open(path, 77, &note);
    ASSERT_TRUE(journal.ok());
    EXPECT_EQ(note.empty(), !FileExists(path));
    int calls = 0;
    o.journal = &*journal;
    // The last stage takes longer than one piece of the others.
    o.progress = [&](size_t, size_t, const std::string&) { return ++calls < 60 + 20 * runs; };
    const auto part = Calibrate(model, calibration, held_out, o);
    finished = part.ok();
    if (!finished) {
      ASSERT_EQ(part.status().code(), StatusCode::kCancelled) << part.status().ToString();
      continue;
    }
    EXPECT_EQ(part->profile.ToJson(), whole->profile.ToJson());
    EXPECT_EQ(part->profile.k_means, whole->profile.k_means);
  }
  EXPECT_GT(runs, 2);
  // Another hash begins anew, and says so; what is no journal is refused.
  std::string note;
  ASSERT_TRUE(Journal::Open(path, 78, &note).ok());
  EXPECT_NE(note.find("beginning anew"), std::string::npos) << note;
  ASSERT_TRUE(WriteFileAtomic(path, "{\"inputs\": 77}").ok());
  EXPECT_EQ(Journal::Open(path, 77, &note).status().code(), StatusCode::kDataLoss);
  ASSERT_EQ(std::system(("rm -r " + std::string(folder)).c_str()), 0);
}

TEST(Calibrate, SaysWhatCannotBe) {
  Planted planted;
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  const auto short_windows = SomeWindows(4, 1, 150);
  const Status none = Calibrate(model, short_windows, short_windows, o).status();
  EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(none.message().find("longer than the recent window of 64 tokens"), std::string::npos)
      << none.message();
  o.max_cache_bytes = 1000;
  const Status small = Calibrate(model, SomeWindows(2, 1), SomeWindows(2, 2), o).status();
  EXPECT_NE(
      small.message().find("a cache of 1000 bytes for 420 tokens; with the smallest formats "),
      std::string::npos)
      << small.message();
}

// As in the proof: a mean over positions, whatever windows they lie in.
TEST(Calibrate, WindowsWeighByTheirPositions) {
  Planted planted;
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.context_len = 1000;
  o.site_tokens = o.search_tokens = 10000;  // all windows
  o.budget_bits = 2.67;
  o.granularity = Granularity::kLayer;
  std::vector<std::vector<TokenId>> windows = SomeWindows(2, 1, 290);
  windows.push_back(SomeWindows(1, 3, 1000)[0]);
  const auto r = Calibrate(model, windows, SomeWindows(2, 2), o);
  ASSERT_TRUE(r.ok()) << r.status().ToString();

  // The same caches side by side, every position counting once.
  CacheConfig chosen = model.MakeCacheConfig();
  std::string note;
  ASSERT_TRUE(r->profile.Apply(model.StructureHash(), 0, &chosen, &note).ok());
  const CacheConfig plain = model.MakeCacheConfig();
  CacheConfig site = chosen;
  for (size_t h = 0; h < site.formats.size(); ++h) {
    site.formats[h] = plain.formats[h];
    if (h / kHeads == 1) site.formats[h].k = WithCenter(ParsePreset("k2v2")->k, Center::kRopeMean);
  }
  const Stream reference = {"f16", &model, plain};
  const auto all =
      MeasureDivergence(reference, std::vector<Stream>{{"chosen", &model, chosen}}, windows, {});
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  const StreamScores& scores = all->front();
  EXPECT_NEAR(r->chosen.kld(), scores.kld.mean(), 1e-9 + 1e-6 * scores.kld.mean());
  const double unweighted =
      (scores.window_means[0] + scores.window_means[1] + scores.window_means[2]) / 3;
  EXPECT_GT(std::abs(unweighted - scores.kld.mean()), 0.05 * scores.kld.mean())
      << "the windows must differ, or nothing is shown";

  DivergenceOptions sealed;
  sealed.first_scored = FirstScored(chosen);
  const auto one =
      MeasureDivergence(reference, std::vector<Stream>{{"site", &model, site}}, windows, sealed);
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  EXPECT_NEAR(r->layers[1].k_kld, one->front().kld.mean(), 1e-6 * one->front().kld.mean() + 1e-9);
}

// A run that begins at a layer gives what a whole run gives.
TEST(MeasureSites, EqualsWholeRuns) {
  Planted planted;
  Model& model = planted.Load();
  const auto windows = SomeWindows(2, 5);
  std::vector<SiteRun> sites;
  std::vector<Stream> streams;
  for (int layer = 0; layer < kLayers; ++layer) {
    SiteRun run{layer, model.MakeCacheConfig()};
    run.config.recent_len = 64;
    run.config.formats[static_cast<size_t>(layer) * kHeads + 1] = *ParsePreset("k2v3");
    sites.push_back(run);
    streams.push_back({"site", &model, run.config});
  }
  SiteRunOptions o;
  o.pool = &planted.pool();
  o.max_bytes = 1;  // one at a time
  const auto alone = MeasureSites(model, sites, windows, o);
  o.max_bytes = size_t{1} << 30;
  const auto together = MeasureSites(model, sites, windows, o);
  ASSERT_TRUE(alone.ok() && together.ok());
  EXPECT_EQ(*alone, *together);
  DivergenceOptions d;
  d.first_scored = 3 * kPageLen;  // the first position that reads a sealed block
  const auto whole =
      MeasureDivergence({"f16", &model, model.MakeCacheConfig()}, streams, windows, d);
  ASSERT_TRUE(whole.ok());
  for (size_t s = 0; s < sites.size(); ++s) {
    for (size_t w = 0; w < windows.size(); ++w) {
      EXPECT_NEAR((*together)[s][w], (*whole)[s].window_means[w], 1e-9) << s << ' ' << w;
      EXPECT_GT((*together)[s][w], 0);
    }
  }
}

TEST(MeasureAttentionErrors, FallsWithBitsAndIsNothingForPlainRows) {
  Planted planted;
  Model& model = planted.Load();
  const auto metric = OutputMetric::FromModel(model);
  ASSERT_TRUE(metric.ok());
  std::vector<CacheConfig> configs;
  for (const char* name : {"f16", "k8v8", "k4v4", "k2v2"}) {
    CacheConfig& c = configs.emplace_back(model.MakeCacheConfig());
    c.recent_len = 64;
    for (HeadFormat& f : c.formats) f = *ParsePreset(name);
  }
  AttentionErrorOptions o;
  o.pool = &planted.pool();
  o.scores = true;
  const auto errors = MeasureAttentionErrors(model, *metric, configs, SomeWindows(2, 3), o);
  ASSERT_TRUE(errors.ok()) << errors.status().ToString();
  for (size_t h = 0; h < static_cast<size_t>(kLayers * kHeads); ++h) {
    double last = -1;
    for (size_t c = 0; c < configs.size(); ++c) {
      const AttentionError& e = (*errors)[c][h];
      EXPECT_GT(e.error / e.energy, last) << c;
      last = e.error / e.energy;
    }
    EXPECT_LT((*errors)[0][h].error / (*errors)[0][h].energy, 1e-6);
    EXPECT_GT((*errors)[0][h].score_agreement, 0.999);
    EXPECT_GT((*errors)[0][h].cosine, 0.9999);
    EXPECT_LT((*errors)[3][h].score_agreement, (*errors)[1][h].score_agreement);
    EXPECT_LT((*errors)[3][h].cosine, (*errors)[1][h].cosine);
  }
}

TEST(MeasureStatistics, FindsTheBiasOfKeys) {
  Planted planted;
  Model& model = planted.Load();
  const auto s = MeasureStatistics(model, SomeWindows(2, 4, 520), {}, nullptr);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->tokens, 1040);
  const std::vector<std::vector<float>> biases = model.KBias();
  for (size_t h = 0; h < s->heads.size(); ++h) {
    const std::vector<float>& bias = biases[h];
    double dot = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < bias.size(); ++i) {
      dot += double{bias[i]} * s->heads[h].k_mean[i];
      aa += double{bias[i]} * bias[i];
      bb += double{s->heads[h].k_mean[i]} * s->heads[h].k_mean[i];
    }
    // Behind layer 0 the stream has a mean of its own.
    if (h < kHeads) {
      EXPECT_GT(dot / std::sqrt(aa * bb), 0.8) << h;
    }
    EXPECT_EQ(s->heads[h].queries.means.size(), static_cast<size_t>(kGroup));
    EXPECT_GE(s->heads[h].k_outlier.ratio, 1);
    EXPECT_GT(s->heads[h].v_rms, 0);
  }
  for (const LayerAttention& a : s->attention) {
    EXPECT_GT(a.beyond[0], a.beyond[1]);
    EXPECT_GT(a.beyond[1], a.beyond[2]);
    EXPECT_LE(a.beyond[0], 1.0001);
    EXPECT_GT(a.sinks, 0);
  }
}

TEST(AddResponses, AnswersOnlyWhatHasNone) {
  ThreadPool pool(1);
  TinyModel model(pool);
  const ByteTokenizer tokenizer;
  const auto encoder = CorpusEncoder::Create(tokenizer);
  ASSERT_TRUE(encoder.ok());
  std::vector<CorpusItem> items(3);
  items[0].kind = CorpusItem::Kind::kCompletion;
  items[0].text = "no answer";
  items[1].kind = CorpusItem::Kind::kCompletion;
  items[1].text = "answered";
  items[1].answer = RecordedAnswer{"yes", "", "stop"};
  items[2].text = "a text";
  ResponseOptions o;
  o.rounds = 3;
  o.max_tokens = 7;
  Journal journal;
  const auto r = AddResponses(model, tokenizer, *encoder, items, o, &journal);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  ASSERT_EQ(r->sequences.size(), 5u);
  EXPECT_EQ(r->generated, 3);
  EXPECT_EQ(r->recorded, 1);
  for (const size_t of_first : {0, 3, 4}) {
    const TokenSequence& s = r->sequences[of_first];
    EXPECT_EQ(s.prompt_len, 9u);
    EXPECT_LE(s.tokens.size(), 16u);
  }
  EXPECT_NE(r->sequences[0].tokens, r->sequences[3].tokens);
  // What was answered once is not answered again.
  o.temperature = 0;
  const auto again = AddResponses(model, tokenizer, *encoder, items, o, &journal);
  EXPECT_EQ(again->sequences[0].tokens, r->sequences[0].tokens);
  o.rounds = 0;
  EXPECT_EQ(AddResponses(model, tokenizer, *encoder, items, o, &journal)->sequences.size(), 3u);
}

TEST(AddResponses, EveryPromptIsReadBeforeAnyIsAnsweredTwice) {
  ThreadPool pool(1);
  TinyModel model(pool);
  const ByteTokenizer tokenizer;
  const auto encoder = CorpusEncoder::Create(tokenizer);
  ASSERT_TRUE(encoder.ok());
  std::vector<CorpusItem> items(6);
  for (size_t i = 0; i < items.size(); ++i) {
    items[i].kind = CorpusItem::Kind::kCompletion;
    items[i].text = StrCat("prompt number ", i);
  }
  ResponseOptions o;
  o.rounds = 2;
  o.max_tokens = 1;
  o.total_tokens = 100;  // of 6 times 16
  Journal journal;
  const auto r = AddResponses(model, tokenizer, *encoder, items, o, &journal);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  std::set<std::vector<TokenId>> prompts;
  for (const TokenSequence& s : r->sequences) {
    prompts.insert({s.tokens.begin(), s.tokens.begin() + static_cast<int64_t>(s.prompt_len)});
  }
  EXPECT_EQ(prompts.size(), items.size());
  EXPECT_EQ(r->sequences.size(), 7u);
}

}  // namespace
}  // namespace tq
