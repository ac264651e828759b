#include "turboquant/calibrate/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "turboquant/base/file.h"
#include "turboquant/base/safetensors.h"

namespace tq {
namespace {

const char kJson[] = R"({"turboquant": {"version": "1.0",
  "model": {"name": "test", "architecture": "llama", "structure_xxh3": "ab12", "num_layers": 4,
            "num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32},
  "defaults": {"page_len": 64, "recent_len": 128, "recent": "q8", "sink_len": 4,
               "k": {"bits": 3}, "v": {"bits": 2}},
  "layers": [{"layers": "0,2-3", "k": {"bits": 4}}, {"layers": "3", "heads": "1", "v": {"bits": "f16"}}]}})";

CacheConfig Shapes() {
  CacheConfig c;
  c.num_layers = 4;
  c.num_kv_heads = 2;
  c.head_dim = 32;
  for (int i = 0; i < 16; ++i) c.rope.inv_freq.push_back(1.f / static_cast<float>(i + 1));
  return c;
}

std::string Replace(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Profile, SetsFormatsPerLayerAndHead) {
  const Result<Profile> p = Profile::Parse(kJson, "", "p");
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  CacheConfig config = Shapes();
  std::string note;
  ASSERT_TRUE(p->Apply(0xab12, 0, &config, &note).ok());
  EXPECT_EQ(note, "the profile has no quality block: it was not verified on held-out text");
  const char* want[] = {"k4v2", "k4v2", "k3v2", "k3v2", "k4v2", "k4v2", "k4v2", "k4v16"};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(PresetName(config.formats[i]), want[i]) << i;
  EXPECT_EQ(config.recent_len, 128);
  EXPECT_EQ(p->Describe(), "4 layers x 2 KV heads: 5 k4v2, 2 k3v2, 1 k4v16; window 128, sinks 4");
}

TEST(Profile, EqualLayersAreWrittenAsOneRange) {
  Profile p = *Profile::Parse(kJson, "", "p");
  const std::string json = p.ToJson();  // layers 0, 2 and 3 are the common ones now
  EXPECT_NE(json.find(R"("layers": "1",)"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("layers": "3",)"), std::string::npos) << json;
  p.model.num_layers = 10;
  p.formats.assign(20, *ParsePreset("k3v2"));
  for (const int layer : {1, 2, 3, 7}) p.formats[2 * layer + 1] = *ParsePreset("k4v2");
  for (const int layer : {5, 6}) {
    p.formats[2 * layer] = p.formats[2 * layer + 1] = *ParsePreset("k4v2");
  }
  const std::string merged = p.ToJson();
  EXPECT_NE(merged.find(R"("layers": "1-3,7",)"), std::string::npos) << merged;
  EXPECT_NE(merged.find(R"("layers": "5-6",)"), std::string::npos) << merged;
  EXPECT_EQ(Profile::Parse(merged, "", "again")->formats, p.formats);
}

TEST(Profile, RoundTripsThroughAFolder) {
  Profile p = *Profile::Parse(kJson, "", "p");
  for (int i = 0; i < 8; ++i) {
    p.k_means.emplace_back(32, static_cast<float>(i + 1));
    p.formats[i].k = WithCenter(p.formats[i].k, Center::kRopeMean);
  }
  p.calibration =
      ProfileCalibration{0x123456789abcdef0u, 48, 98304, 2048, "kld", 2.75, 0.005, "2026-11-30"};
  std::vector<std::vector<int32_t>> read(1);
  for (int32_t t = 0; t < 5000; ++t) read[0].push_back(t);
  p.calibration->text = TextSketch{read};
  p.quality = ProfileQuality{.held_out_tokens = 1000,
                             .windows = 8,
                             .kld_mean = 0.004,
                             .kld_stderr = 0.0005,
                             .kld_p99 = 0.05,
                             .floor_kld_mean = 0.0003,
                             .same_top = 0.97,
                             .ppl_ratio = 1.001,
                             .gate_kld_mean = 0.005,
                             .device = "cpu, avx2",
                             .passed = true};
  p.bits_all_counted = {{8192, 2.92}, {131072, 2.73}};
  char folder[] = "/tmp/tq_profile_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/x.tqprofile";
  ASSERT_TRUE(p.Save(path).ok());
  const Result<Profile> q = Profile::Load(path);
  ASSERT_TRUE(q.ok()) << q.status().ToString();
  EXPECT_EQ(q->formats, p.formats);
  EXPECT_EQ(q->k_means, p.k_means);
  EXPECT_EQ(q->model.structure_hash, p.model.structure_hash);
  EXPECT_EQ(q->quality->kld_mean, 0.004);
  EXPECT_EQ(q->quality->gate_kld_mean, 0.005);
  EXPECT_EQ(q->calibration->corpus_hash, p.calibration->corpus_hash);
  EXPECT_EQ(q->calibration->text, p.calibration->text);
  EXPECT_FALSE(q->calibration->text.empty());
  EXPECT_EQ(q->bits_all_counted, p.bits_all_counted);
  EXPECT_TRUE(q->notes.empty()) << q->notes[0];
  EXPECT_EQ(q->ToJson(), p.ToJson());
  CacheConfig config = Shapes();
  std::string note;
  ASSERT_TRUE(q->Apply(0xab12, 0, &config, &note).ok());
  EXPECT_EQ(note, "");
  ASSERT_EQ(config.centers.size(), 8u);
  EXPECT_EQ(config.centers[3].pairs.size(), 16u);
  ASSERT_EQ(std::system(("rm -r " + std::string(folder)).c_str()), 0);
}

TEST(Profile, AQualityThatIsWrittenLaterLeavesAllElse) {
  char folder[] = "/tmp/tq_profile_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/profile.json";
  const std::string later = Replace(kJson, "\"layers\"", "\"of_a_later_version\": 7, \"layers\"");
  ASSERT_TRUE(WriteFileAtomic(path, later).ok());
  ProfileQuality quality;
  quality.kld_mean = 0.25;
  ASSERT_TRUE(Profile::SaveQuality(folder, quality).ok());
  const Result<Profile> p = Profile::Load(folder);
  ASSERT_TRUE(p.ok() && p->quality) << p.status().ToString();
  EXPECT_EQ(p->quality->kld_mean, 0.25);
  EXPECT_EQ(p->formats, Profile::Parse(kJson, "", "p")->formats);
  EXPECT_NE(ReadFile(path)->find("\"of_a_later_version\": 7"), std::string::npos);
  EXPECT_FALSE(Profile::SaveQuality(std::string(folder) + "/none", quality).ok());
  ASSERT_EQ(std::system(("rm -r " + std::string(folder)).c_str()), 0);
}

TEST(Profile, KeepsWhatCalibratedAxesNeed) {
  Profile p = *Profile::Parse(kJson, "", "p");
  p.tensors.resize(8);
  for (int i = 0; i < 8; ++i) {
    HeadTensors& t = p.tensors[static_cast<size_t>(i)];
    HeadFormat& f = p.formats[static_cast<size_t>(i)];
    t.queries.means = {std::vector<float>(32, static_cast<float>(i)), std::vector<float>(32, 1.f)};
    t.queries.rms = 2.f + static_cast<float>(i);
    if (f.v.is_float()) continue;
    f.anchors = 1 + i % 2;
    f.anchor_bits = i % 2 == 0 ? 4 : 8;
    f.k.codebook = Codebook::kCalibrated;
    for (int l = 0; l < 1 << f.k.bits; ++l) t.k_levels.push_back(static_cast<float>(l) - 4.5f);
    f.v.rotate = Rotate::kMatrix;
    t.v_matrix.assign(32 * 32, 0.f);
    for (size_t c = 0; c < 32; ++c) t.v_matrix[c * 33] = 2.f;
  }
  char folder[] = "/tmp/tq_profile_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/x.tqprofile";
  ASSERT_TRUE(p.Save(path).ok());
  const Result<Profile> q = Profile::Load(path);
  ASSERT_EQ(std::system(("rm -r " + std::string(folder)).c_str()), 0);
  ASSERT_TRUE(q.ok()) << q.status().ToString();
  EXPECT_EQ(q->formats, p.formats);
  ASSERT_EQ(q->tensors.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(q->tensors[i].k_levels, p.tensors[i].k_levels) << i;
    EXPECT_EQ(q->tensors[i].v_matrix, p.tensors[i].v_matrix) << i;
    EXPECT_EQ(q->tensors[i].queries.means, p.tensors[i].queries.means) << i;
    EXPECT_EQ(q->tensors[i].queries.rms, p.tensors[i].queries.rms) << i;
  }
  CacheConfig config = Shapes();
  std::string note;
  EXPECT_TRUE(q->Apply(0xab12, 0, &config, &note).ok());
  config.tensors.clear();
  EXPECT_EQ(
      config.Validate().message(),
      "layer 0, KV head 0: K: codebook 'calibrated' of 4 bits needs 16 levels from a profile; "
      "found 0");
}

TEST(Profile, RefusesAnotherModel) {
  const Profile p = *Profile::Parse(kJson, "", "p");
  CacheConfig config = Shapes();
  config.num_layers = 30;
  std::string note;
  Status s = p.Apply(0, 0, &config, &note);
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      s.message(),
      "the profile was made for 4 layers x 2 KV heads of head_dim 32 ('test'); this model has "
      "30 x 2 of 32; use a profile of this model");
  config = Shapes();
  s = p.Apply(0xffff, 0, &config, &note);
  EXPECT_NE(s.message().find("structure ab12, this model ffff"), std::string::npos) << s.message();
}

TEST(Profile, SaysWhatIsWrong) {
  const auto error = [](const std::string& json) { return Profile::Parse(json, "", "p").status(); };
  EXPECT_EQ(error("{").code(), StatusCode::kDataLoss);
  EXPECT_EQ(error("{}").message(), "p has no object \"turboquant\": it is not a profile");
  EXPECT_EQ(error(Replace(kJson, "\"1.0\"", "\"2.0\"")).message(),
            "p: profile version 2.0; this build reads version 1.x");
  EXPECT_EQ(error(Replace(kJson, "\"1.0\"", "1")).message(),
            "p: turboquant.version is number; a string was expected");
  EXPECT_EQ(error(Replace(kJson, "\"head_dim\": 32", "\"head_dim\": 1000")).message(),
            "p: model.head_dim is 1000; it must be 2 to 512");
  EXPECT_EQ(error(Replace(kJson, "\"0,2-3\"", "\"4\"")).message(),
            "p: layers[0]: layer 4 is out of range: there are 4, from 0 to 3");
  EXPECT_EQ(error(Replace(kJson, "\"bits\": 4", "\"bits\": 7")).code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      error(Replace(kJson, "\"bits\": 4", "\"bits\": 4, \"codebook\": \"vector\"")).message(),
      "p: layers[0].k.codebook is 'vector'; it must be one of none, uniform, lloyd, calibrated, "
      "trellis");
  EXPECT_EQ(
      error(Replace(kJson, "\"bits\": 4", "\"bits\": 4, \"center\": \"rope_mean\"")).message(),
      "p: layer 0, KV head 0 has center 'rope_mean', but there is no tensor layers.0.k_mean");
  EXPECT_EQ(error(Replace(kJson, "\"page_len\": 64", "\"page_len\": 128")).message(),
            "p: defaults.page_len is 128; it must be 64 to 64");
}

TEST(Profile, KeepsSensitivitiesByLayerOrByHead) {
  Profile p = *Profile::Parse(kJson, "", "p");
  p.sensitivity = ProfileSensitivity{3, {1e-4, 2, 3, 0.25}, {5, 6, 7, 8}};
  const Result<Profile> by_layer = Profile::Parse(p.ToJson(), "", "p");
  ASSERT_TRUE(by_layer.ok() && by_layer->sensitivity) << by_layer.status().ToString();
  EXPECT_EQ(by_layer->sensitivity->bits, 3);
  EXPECT_EQ(by_layer->sensitivity->k, p.sensitivity->k);
  EXPECT_EQ(by_layer->sensitivity->v, p.sensitivity->v);
  p.sensitivity = ProfileSensitivity{2, {1, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 6, 5, 4, 3, 2, 1}};
  const Result<Profile> by_head = Profile::Parse(p.ToJson(), "", "p");
  ASSERT_TRUE(by_head.ok()) << by_head.status().ToString();
  EXPECT_EQ(by_head->sensitivity->k, p.sensitivity->k);

  const auto error = [&](const std::string& value) {
    const std::string json = Replace(kJson, "\"1.0\",", "\"1.0\", \"sensitivity\": " + value + ",");
    return Profile::Parse(json, "", "p").status().message();
  };
  const std::string wrong =
      "p: sensitivity.k is not a list with a number, or with 2 numbers, for each of 4 layers";
  for (const char* k : {"3", "[1, 2]", "[1, 2, 3, [4, 5]]", "[[1], [2], [3], [4]]",
                        "[1, 2, 3, \"4\"]", "[[1, 2], [1, 2], [1, 2], [1, null]]"}) {
    EXPECT_EQ(error(StrCat("{\"k\": ", k, ", \"v\": [1, 2, 3, 4]}")), wrong) << k;
  }
  EXPECT_EQ(error("{\"k\": [[1, 2], [1, 2], [1, 2], [1, 2]], \"v\": [1, 2, 3, 4]}"),
            "p: sensitivity: k has 8 numbers and v 4");
}

TEST(Profile, NotesWhatANewerMinorVersionAdds) {
  const std::string json =
      Replace(Replace(kJson, "\"1.0\"", "\"1.7\""), "\"recent\"", "\"novel\": 1, \"recent\"");
  const Result<Profile> p = Profile::Parse(json, "", "p");
  ASSERT_TRUE(p.ok()) << p.status().ToString();
  ASSERT_EQ(p->notes.size(), 1u);
  EXPECT_EQ(p->notes[0], "p: defaults.novel is not known to this version and was ignored");
}

// Any cut of the JSON is an error or a profile, never a crash.
TEST(Profile, TruncatedAtEveryByte) {
  const std::string json = kJson;
  for (size_t n = 0; n < json.size(); ++n) {
    EXPECT_FALSE(Profile::Parse(json.substr(0, n), "", "p").ok()) << n;
  }
  const std::string tensors =
      *SerializeSafetensors({{"layers.0.k_mean", {2, 32}, std::vector<float>(64, 1.f)}});
  EXPECT_TRUE(Profile::Parse(json, tensors, "p").ok());
  for (size_t n = 1; n < tensors.size(); ++n) {
    EXPECT_FALSE(Profile::Parse(json, std::string_view(tensors).substr(0, n), "p").ok()) << n;
  }
}

TEST(Profile, MissingFolder) {
  EXPECT_EQ(Profile::Load("/nonexistent/x.tqprofile").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace tq
