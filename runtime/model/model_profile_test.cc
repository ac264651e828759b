#include "runtime/model/model_profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/model/tiny_llama_for_test.h"
#include "turboquant/base/file.h"
#include "turboquant/base/safetensors.h"

namespace tq {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class ModelProfileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) / (std::string("model_profile_") + info->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string Path(const std::string& name) const { return (root_ / name).string(); }

  std::string WriteGguf() {
    const std::string path = Path("tiny.gguf");
    EXPECT_TRUE(WriteFileAtomic(path, TinyLlama{}.Build()).ok());
    return path;
  }
  // A folder of the same shapes.
  std::string WriteFolder() {
    const std::string folder = Path("hub");
    fs::create_directories(folder);
    std::vector<SafetensorsSource> tensors;
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      int64_t n = 1;
      for (const int64_t d : shape) n *= d;
      tensors.push_back({name, std::move(shape), std::vector<float>(static_cast<size_t>(n), 0.5f)});
    };
    add("model.embed_tokens.weight", {50, 64});
    add("model.norm.weight", {64});
    for (int l = 0; l < 2; ++l) {
      const std::string layer = StrCat("model.layers.", l, ".");
      add(layer + "self_attn.q_proj.weight", {64, 64});
      add(layer + "self_attn.k_proj.weight", {32, 64});
      add(layer + "self_attn.v_proj.weight", {32, 64});
      add(layer + "self_attn.o_proj.weight", {64, 64});
      add(layer + "mlp.gate_proj.weight", {96, 64});
      add(layer + "mlp.up_proj.weight", {96, 64});
      add(layer + "mlp.down_proj.weight", {64, 96});
      add(layer + "input_layernorm.weight", {64});
      add(layer + "post_attention_layernorm.weight", {64});
    }
    EXPECT_TRUE(WriteSafetensors(folder + "/model.safetensors", tensors).ok());
    EXPECT_TRUE(WriteFileAtomic(folder + "/config.json", kConfig).ok());
    return folder;
  }
  static Profile MakeProfile(const std::string& model, const std::string& preset, bool means) {
    Profile p;
    const Result<GgufFile> file = GgufFile::Open(model);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    p.model.name = "Tiny";
    p.model.architecture = "llama";
    p.model.structure_hash = StructureHashOf(*file);
    p.model.num_layers = 2;
    p.model.num_q_heads = 4;
    p.model.num_kv_heads = 2;
    p.model.head_dim = 16;
    HeadFormat format = *ParsePreset(preset);
    if (means) {
      format.k = WithCenter(format.k, Center::kRopeMean);
      for (int i = 0; i < 4; ++i) p.k_means.emplace_back(16, 0.25f * static_cast<float>(i));
    }
    p.formats.assign(4, format);
    return p;
  }
  static Json Config(const std::string& folder) {
    return Json::parse(*ReadFile(folder + "/config.json"));
  }
  static constexpr char kConfig[] =
      "{\n    \"model_type\": \"llama\", \"rms_norm_eps\": 1.00e-5,\n"
      "    \"num_hidden_layers\": 2, \"hidden_size\": 64, \"intermediate_size\": 96,\n"
      "    \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 50,\n"
      "    \"max_position_embeddings\": 4096, \"made_by\": {\"us\":[1 ,2]}\n}\n";

 private:
  fs::path root_;
};

TEST_F(ModelProfileTest, NothingIsFoundWhereNothingIs) {
  for (const std::string& model : {WriteGguf(), WriteFolder(), Path("nowhere.gguf")}) {
    const auto found = FindModelProfile(model);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_FALSE(found->has_value());
  }
}

TEST_F(ModelProfileTest, AFolderKeepsItInItsConfig) {
  const std::string folder = WriteFolder();
  const Profile profile = MakeProfile(folder, "k4v4", true);
  const auto written = WriteProfileInto(folder, profile);
  ASSERT_TRUE(written.ok()) << written.status().ToString();
  EXPECT_EQ(written->path, folder + "/config.json");
  const std::string text = *ReadFile(folder + "/config.json");
  // All that was there is there still, in its bytes.
  const std::string before = kConfig;
  EXPECT_TRUE(text.starts_with(before.substr(0, before.size() - 3)));
  EXPECT_EQ(*ReadFile(folder + "/config.json.bak"), before);
  Json without = Json::parse(text);
  without.erase("turboquant");
  EXPECT_EQ(without, Json::parse(before));

  const auto found = FindModelProfile(folder + "/");
  ASSERT_TRUE(found.ok() && *found) << found.status().ToString();
  EXPECT_EQ((*found)->place, "in its config.json");
  EXPECT_EQ((*found)->name, "hub/config.json");
  EXPECT_EQ((*found)->profile.ToJson(), profile.ToJson());
  EXPECT_EQ((*found)->profile.k_means, profile.k_means);
  EXPECT_TRUE((*found)->profile.notes.empty()) << (*found)->profile.notes[0];
  // The model is as it was for who loads it.
  EXPECT_EQ(StructureHashOf(*GgufFile::Open(folder)), *profile.model.structure_hash);
}

TEST_F(ModelProfileTest, WritingAgainKeepsTheFirstFileAndDropsOldTensors) {
  const std::string folder = WriteFolder();
  ASSERT_TRUE(WriteProfileInto(folder, MakeProfile(folder, "k4v4", true)).ok());
  const Profile second = MakeProfile(folder, "k3v2", false);
  ASSERT_TRUE(WriteProfileInto(folder, second).ok());
  EXPECT_EQ(*ReadFile(folder + "/config.json.bak"), kConfig);
  EXPECT_EQ((*FindModelProfile(folder))->profile.ToJson(), second.ToJson());
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"config.json", "config.json.bak", "model.safetensors"}));
}

TEST_F(ModelProfileTest, ABackupOfSomebodyElseStays) {
  const std::string folder = WriteFolder();
  ASSERT_TRUE(WriteFileAtomic(folder + "/config.json.bak", "mine").ok());
  const auto written = WriteProfileInto(folder, MakeProfile(folder, "k4v4", true));
  ASSERT_TRUE(written.ok()) << written.status().ToString();
  EXPECT_EQ(*ReadFile(folder + "/config.json.bak"), "mine");
  EXPECT_EQ(*ReadFile(folder + "/config.json.bak.1"), kConfig);
  EXPECT_TRUE(written->notes.back().ends_with("/config.json.bak.1")) << written->notes.back();

  const auto again = WriteProfileInto(folder, MakeProfile(folder, "k3v2", false));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_FALSE(FileExists(folder + "/config.json.bak.2"));
  for (const std::string& note : again->notes) EXPECT_EQ(note.find(".bak"), std::string::npos);
}

TEST_F(ModelProfileTest, ABackupWithAProfileKeepsItsTensors) {
  const std::string folder = WriteFolder();
  const Profile first = MakeProfile(folder, "k4v4", true);
  ASSERT_TRUE(WriteProfileInto(folder, first).ok());
  fs::remove(folder + "/config.json.bak");  // as if the model had come with the profile
  ASSERT_TRUE(WriteProfileInto(folder, MakeProfile(folder, "k3v2", false)).ok());
  fs::rename(folder + "/config.json.bak", folder + "/config.json");
  const auto found = FindModelProfile(folder);
  ASSERT_TRUE(found.ok() && *found) << found.status().ToString();
  EXPECT_EQ((*found)->profile.ToJson(), first.ToJson());
}

TEST_F(ModelProfileTest, TensorsThatAreMissingOrOthersAreDataLoss) {
  const std::string folder = WriteFolder();
  ASSERT_TRUE(WriteProfileInto(folder, MakeProfile(folder, "k4v4", true)).ok());
  const std::string name = Config(folder)["turboquant"]["tensors"]["file"];
  std::string bytes = *ReadFile(folder + "/" + name);
  bytes.back() ^= 1;
  ASSERT_TRUE(WriteFileAtomic(folder + "/" + name, bytes).ok());
  const Status others = FindModelProfile(folder).status();
  EXPECT_EQ(others.code(), StatusCode::kDataLoss);
  EXPECT_NE(others.message().find(" has xxh3 "), std::string::npos) << others.message();
  fs::remove(folder + "/" + name);
  const Status missing = FindModelProfile(folder).status();
  EXPECT_EQ(missing.code(), StatusCode::kDataLoss);
  EXPECT_NE(missing.message().find(" is missing, which the profile "), std::string::npos);
  // A name that leads elsewhere is not followed.
  Json config = Config(folder);
  config["turboquant"]["tensors"]["file"] = "../model.safetensors";
  ASSERT_TRUE(WriteFileAtomic(folder + "/config.json", config.dump()).ok());
  EXPECT_EQ(FindModelProfile(folder).status().code(), StatusCode::kDataLoss);
}

TEST_F(ModelProfileTest, EnginesGetTheirMapWhereTheFormatsCanBeSaidInIt) {
  const std::string folder = WriteFolder();
  Profile profile = MakeProfile(folder, "fp8", false);
  profile.formats[2] = profile.formats[3] = *ParsePreset("f16");
  ASSERT_TRUE(WriteProfileInto(folder, profile).ok());
  const Json engine = Config(folder)["quantization_config"];
  EXPECT_EQ(engine["kv_cache_quant_algo"], "MIXED_PRECISION");
  EXPECT_EQ(engine["kv_cache_quantized_layers"],
            (Json{{"model.layers.0.self_attn", {{"quant_algo", "FP8"}}}}));
  EXPECT_TRUE(GgufFile::Open(folder).ok());  // weights are not quantized by that
  // Integer formats cannot be said: what we wrote goes.
  ASSERT_TRUE(WriteProfileInto(folder, MakeProfile(folder, "k8v4", false)).ok());
  EXPECT_FALSE(Config(folder).contains("quantization_config"));
}

TEST_F(ModelProfileTest, AnEnginesOwnConfigIsLeftAlone) {
  const std::string folder = WriteFolder();
  Json config = Config(folder);
  config["quantization_config"] = {{"quant_method", "modelopt"}, {"kv_cache_quant_algo", "FP8"}};
  ASSERT_TRUE(WriteFileAtomic(folder + "/config.json", config.dump(1)).ok());
  const auto written = WriteProfileInto(folder, MakeProfile(folder, "fp8", false));
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(Config(folder)["quantization_config"], config["quantization_config"]);
  EXPECT_EQ(written->notes[0].rfind("kv_cache_quantized_layers is not written", 0), 0u);
}

TEST_F(ModelProfileTest, LinksAndSharedCachesAreRefusedWithTheWayOut) {
  const std::string folder = WriteFolder();
  const Profile profile = MakeProfile(folder, "k4v4", false);
  fs::rename(folder + "/config.json", Path("blob"));
  fs::create_symlink(Path("blob"), folder + "/config.json");
  const Status link = WriteProfileInto(folder, profile).status();
  EXPECT_EQ(link.code(), StatusCode::kUnsupported);
  EXPECT_NE(link.message().find("is a link to"), std::string::npos);
  EXPECT_NE(link.message().find("keep the profile beside the model, as '" + folder + ".tqprofile'"),
            std::string::npos)
      << link.message();
  EXPECT_EQ(*ReadFile(Path("blob")), kConfig);
  // Known before there is a profile.
  EXPECT_EQ(CheckProfileGoesInto(folder).message(), link.message());

  fs::remove(folder + "/config.json");
  fs::rename(Path("blob"), folder + "/config.json");
  const std::string cache = Path("models--a--b/snapshots/0123");
  fs::create_directories(fs::path(cache).parent_path());
  fs::rename(folder, cache);
  EXPECT_EQ(WriteProfileInto(cache, profile).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(CheckProfileGoesInto(cache).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(CheckProfileGoesInto(WriteFolder()).ok());
  EXPECT_TRUE(CheckProfileGoesInto(WriteGguf()).ok());
  EXPECT_EQ(CheckProfileGoesInto(Path("no/folder/x.gguf")).code(), StatusCode::kUnavailable);
}

TEST_F(ModelProfileTest, WritingThatIsInterruptedLeavesNothing) {
  const std::string model = WriteGguf();
  const std::string before = *ReadFile(model);
  const auto files = [&] {
    return std::distance(fs::directory_iterator(fs::path(model).parent_path()), {});
  };
  const auto count = files();
  size_t calls = 0;
  const auto stop = [&](size_t, size_t, const std::string&) { return ++calls < 3; };
  const Status status =
      WriteProfileInto(model, MakeProfile(model, "k4v4", true), "", stop).status();
  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.ToString();
  EXPECT_EQ(calls, 3u);
  EXPECT_EQ(files(), count);
  EXPECT_EQ(*ReadFile(model), before);
}

TEST_F(ModelProfileTest, AReadOnlyFolderIsRefusedWithTheWayOut) {
  const std::string folder = WriteFolder();
  const Profile profile = MakeProfile(folder, "k4v4", false);
  fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
  const Status status = WriteProfileInto(folder, profile).status();
  fs::permissions(folder, fs::perms::owner_all);
  if (::geteuid() == 0) GTEST_SKIP() << "rights do not bind the super-user";
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("keep the profile beside"), std::string::npos);
}

TEST_F(ModelProfileTest, AGgufFileGetsItInItsMetadata) {
  const std::string model = WriteGguf();
  const Profile profile = MakeProfile(model, "k4v4", true);
  const auto written = WriteProfileInto(model, profile);
  ASSERT_TRUE(written.ok()) << written.status().ToString();
  EXPECT_EQ(written->path, Path("tiny.turboquant.gguf"));
  const auto found = FindModelProfile(written->path);
  ASSERT_TRUE(found.ok() && *found) << found.status().ToString();
  EXPECT_EQ((*found)->place, "in its metadata");
  EXPECT_EQ((*found)->name, "tiny.turboquant.gguf");
  EXPECT_EQ((*found)->profile.ToJson(), profile.ToJson());
  EXPECT_EQ((*found)->profile.k_means, profile.k_means);
  const GgufFile before = *GgufFile::Open(model), after = *GgufFile::Open(written->path);
  EXPECT_EQ(StructureHashOf(before), StructureHashOf(after));
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  for (const GgufTensor& t : before.tensors()) {
    const auto a = before.Data(t), b = after.Data(*after.FindTensor(t.name));
    EXPECT_TRUE(std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin(), b.bytes().end()));
  }
  // Again, into itself: another profile, without tensors.
  const Profile second = MakeProfile(model, "k3v2", false);
  const auto again = WriteProfileInto(written->path, second);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->path, written->path);
  EXPECT_EQ((*FindModelProfile(written->path))->profile.ToJson(), second.ToJson());
}

TEST_F(ModelProfileTest, MetadataOfAnotherTypeIsDataLoss) {
  const std::string model = WriteGguf();
  const std::string json = MakeProfile(model, "k4v4", false).ToJson();
  TinyLlama tiny;
  tiny.extra = [&](GgufBuilder& b) {
    b.Text("turboquant.profile", json).Text("turboquant.tensors", "text");
  };
  const std::string other = Path("other.gguf");
  ASSERT_TRUE(WriteFileAtomic(other, tiny.Build()).ok());
  const Status status = FindModelProfile(other).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("turboquant.tensors is no array of bytes"), std::string::npos)
      << status.message();
}

TEST_F(ModelProfileTest, TheOneBesideGoesFirst) {
  const std::string model = WriteGguf();
  const std::string inside = WriteProfileInto(model, MakeProfile(model, "k4v4", false))->path;
  const Profile beside = MakeProfile(model, "k3v2", false);
  ASSERT_TRUE(beside.Save(ProfileBeside(inside)).ok());
  const auto found = FindModelProfile(inside);
  ASSERT_TRUE(found.ok() && *found);
  EXPECT_EQ((*found)->place, "beside the model");
  EXPECT_EQ((*found)->unused, "in its metadata");
  EXPECT_EQ((*found)->profile.ToJson(), beside.ToJson());
  // The same in both places is one profile.
  const Profile same = MakeProfile(inside, "k4v4", true);
  ASSERT_TRUE(WriteProfileInto(inside, same, inside).ok());
  ASSERT_TRUE(same.Save(ProfileBeside(inside)).ok());
  const auto both = FindModelProfile(inside);
  ASSERT_TRUE(both.ok() && *both) << both.status().ToString();
  EXPECT_EQ((*both)->unused, "");
}

TEST_F(ModelProfileTest, AnotherStructureIsRefusedWithBothSides) {
  const std::string model = WriteGguf();
  Profile profile = MakeProfile(model, "k4v4", false);
  *profile.model.structure_hash ^= 1;
  const Status status = WriteProfileInto(model, profile).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().rfind("the profile was made for 'Tiny' of structure ", 0), 0u);
  EXPECT_FALSE(FileExists(Path("tiny.turboquant.gguf")));
  EXPECT_EQ(WriteProfileInto(WriteFolder(), profile, Path("x")).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tq
