// Folders as GGUF: names, rows, experts; what is refused; damage at every byte; split GGUF files.
#include "runtime/formats/hf_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/formats/gguf_builder_for_test.h"
#include "runtime/formats/memory_folder_for_test.h"
#include "turboquant/base/file.h"
#include "turboquant/base/numeric.h"
#include "turboquant/base/safetensors.h"

namespace tq {
namespace {

using nlohmann::json;
using Floats = std::vector<float>;
using Sources = std::vector<SafetensorsSource>;

// 0, 1, 2 ... in the shape.
SafetensorsSource Count(const std::string& name, const std::vector<int64_t>& shape, float first = 0,
                        SafetensorsType type = SafetensorsType::kF32) {
  SafetensorsSource source = {name, shape, {}, type};
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  for (int64_t i = 0; i < n; ++i) source.values.push_back(first + static_cast<float>(i));
  return source;
}

// One layer, 2 query heads of 4 values over 1 KV head, hidden size 3.
json Config(const std::string& type) {
  return {{"model_type", type},       {"num_hidden_layers", 1}, {"max_position_embeddings", 64},
          {"hidden_size", 3},         {"intermediate_size", 2}, {"num_attention_heads", 2},
          {"num_key_value_heads", 1}, {"head_dim", 4},          {"rms_norm_eps", 1e-5},
          {"vocab_size", 2},          {"rope_theta", 500000.0}};
}

const std::string kLayer = "model.layers.0.";

Sources Attention() {
  return {Count("model.embed_tokens.weight", {2, 3}),
          Count("model.norm.weight", {3}),
          Count(kLayer + "self_attn.q_proj.weight", {8, 3}),
          Count(kLayer + "self_attn.k_proj.weight", {4, 3}),
          Count(kLayer + "self_attn.v_proj.weight", {4, 3}),
          Count(kLayer + "self_attn.o_proj.weight", {3, 8}),
          Count(kLayer + "input_layernorm.weight", {3}, 0.5f, SafetensorsType::kBF16),
          Count(kLayer + "post_attention_layernorm.weight", {3})};
}
Sources Dense() {
  Sources s = Attention();
  s.push_back(Count(kLayer + "mlp.gate_proj.weight", {2, 3}));
  s.push_back(Count(kLayer + "mlp.up_proj.weight", {2, 3}));
  s.push_back(Count(kLayer + "mlp.down_proj.weight", {3, 2}));
  return s;
}

std::string Bytes(const Sources& sources) {
  const Result<std::string> bytes = SerializeSafetensors(sources);
  TQ_CHECK(bytes.ok());
  return *bytes;
}

MemoryFolder Folder(const json& config, const Sources& sources) {
  MemoryFolder folder;
  folder.files["config.json"] = config.dump();
  folder.files["model.safetensors"] = Bytes(sources);
  return folder;
}

// The folder must stay while the file is used.
GgufFile MustRead(MemoryFolder& folder) {
  Result<GgufContents> contents = ReadHuggingFaceFolder(folder, "some/tiny");
  EXPECT_TRUE(contents.ok()) << contents.status().ToString();
  TQ_CHECK(contents.ok());
  Result<GgufFile> file = GgufFile::FromContents(*std::move(contents));
  TQ_CHECK(file.ok());
  return *std::move(file);
}

Floats Values(const GgufFile& file, const std::string& name) {
  const GgufTensor* t = file.FindTensor(name);
  if (t == nullptr) return {};
  const TensorData data = file.Data(*t);
  EXPECT_EQ(data.bytes().size(), t->num_bytes()) << name;
  EXPECT_EQ(t->type, GgmlType::kF32) << name;
  Floats values(data.bytes().size() / sizeof(float));
  std::memcpy(values.data(), data.bytes().data(), data.bytes().size());
  return values;
}

std::vector<int64_t> Shape(const GgufFile& file, const std::string& name) {
  const GgufTensor* t = file.FindTensor(name);
  return t == nullptr ? std::vector<int64_t>() : t->shape;
}

void ExpectError(MemoryFolder folder, StatusCode code, const std::string& part) {
  const Status status = ReadHuggingFaceFolder(folder, "m").status();
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  EXPECT_EQ(status.message().rfind("cannot read 'm': ", 0), 0u) << status.ToString();
}

TEST(HfFolder, LlamaHasGgufsNamesAndRows) {
  MemoryFolder folder = Folder(Config("llama"), Dense());
  const GgufFile file = MustRead(folder);
  EXPECT_EQ(*file.GetString("general.architecture"), "llama");
  EXPECT_EQ(*file.GetString("general.name"), "tiny");
  EXPECT_EQ(*file.GetInt("llama.block_count"), 1);
  EXPECT_EQ(*file.GetInt("llama.context_length"), 64);
  EXPECT_EQ(*file.GetInt("llama.embedding_length"), 3);
  EXPECT_EQ(*file.GetInt("llama.feed_forward_length"), 2);
  EXPECT_EQ(*file.GetInt("llama.attention.head_count"), 2);
  EXPECT_EQ(*file.GetInt("llama.attention.head_count_kv"), 1);
  EXPECT_EQ(*file.GetInt("llama.attention.key_length"), 4);
  EXPECT_EQ(*file.GetInt("llama.rope.dimension_count"), 4);
  EXPECT_EQ(*file.GetInt("llama.vocab_size"), 2);
  EXPECT_EQ(*file.GetFloat("llama.rope.freq_base"), 500000);
  EXPECT_EQ(*file.GetFloat("llama.attention.layer_norm_rms_epsilon"), 1e-5);
  EXPECT_FALSE(file.Has("llama.attention.sliding_window"));
  EXPECT_EQ(file.tensors().size(), 11u);
  EXPECT_EQ(Shape(file, "token_embd.weight"), (std::vector<int64_t>{3, 2}));
  // Rows of a head: 0, 2, 1, 3 (the second half between the first).
  EXPECT_EQ(Values(file, "blk.0.attn_k.weight"), (Floats{0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11}));
  const Floats q = Values(file, "blk.0.attn_q.weight");
  ASSERT_EQ(q.size(), 24u);
  EXPECT_EQ(q[3], 6) << "row 1 of head 0 was row 2";
  EXPECT_EQ(q[15], 18) << "row 1 of head 1 was its row 2";
  EXPECT_EQ(Values(file, "blk.0.attn_v.weight")[3], 3) << "v stays";
  EXPECT_EQ(Values(file, "blk.0.attn_norm.weight"), (Floats{0.5f, 1.5f, 2.5f})) << "as float32";
  EXPECT_EQ(file.FindTensor("output.weight"), nullptr) << "tied";
}

TEST(HfFolder, TypesStayWhereNothingIsComputed) {
  Sources sources = Dense();
  for (SafetensorsSource& s : sources) s.type = SafetensorsType::kBF16;
  MemoryFolder folder = Folder(Config("llama"), sources);
  const GgufFile file = MustRead(folder);
  EXPECT_EQ(file.FindTensor("blk.0.attn_q.weight")->type, GgmlType::kBF16);
  EXPECT_EQ(file.FindTensor("token_embd.weight")->type, GgmlType::kBF16);
  EXPECT_EQ(file.FindTensor("output_norm.weight")->type, GgmlType::kF32);
  const TensorData q = file.Data(*file.FindTensor("blk.0.attn_q.weight"));
  uint16_t value;
  std::memcpy(&value, q.bytes().data() + 2 * 3, 2);
  EXPECT_EQ(F32FromBF16(value), 6);
}

TEST(HfFolder, TheHeadIsLeftOutWhereItIsTied) {
  Sources sources = Dense();
  sources.push_back(Count("lm_head.weight", {2, 3}));
  json config = Config("llama");
  MemoryFolder plain = Folder(config, sources);
  EXPECT_EQ(Shape(MustRead(plain), "output.weight"), (std::vector<int64_t>{3, 2}));
  config["tie_word_embeddings"] = true;
  MemoryFolder tied = Folder(config, sources);
  EXPECT_EQ(MustRead(tied).FindTensor("output.weight"), nullptr);
  config["tie_word_embeddings"] = false;
  ExpectError(Folder(config, Dense()), StatusCode::kDataLoss, "there is no lm_head.weight");
}

TEST(HfFolder, QwenKeepsRowsAndHasBiasesAndNorms) {
  json config = Config("qwen3");
  config["sliding_window"] = 32;
  config["use_sliding_window"] = false;
  Sources sources = Dense();
  sources.push_back(Count(kLayer + "self_attn.q_norm.weight", {4}));
  sources.push_back(Count(kLayer + "self_attn.k_norm.weight", {4}));
  sources.push_back(Count(kLayer + "self_attn.k_proj.bias", {4}, 0, SafetensorsType::kF16));
  MemoryFolder folder = Folder(config, sources);
  const GgufFile file = MustRead(folder);
  EXPECT_EQ(*file.GetString("general.architecture"), "qwen3");
  EXPECT_FALSE(file.Has("qwen3.attention.sliding_window")) << "it is switched off";
  EXPECT_EQ(Values(file, "blk.0.attn_k.weight")[3], 3);
  EXPECT_EQ(Values(file, "blk.0.attn_k.bias"), (Floats{0, 1, 2, 3}));
  EXPECT_EQ(Values(file, "blk.0.attn_q_norm.weight"), (Floats{0, 1, 2, 3}));
  config["use_sliding_window"] = true;
  ExpectError(Folder(config, sources), StatusCode::kUnsupported, "'use_sliding_window' of");
}

TEST(HfFolder, LlamasBiasesArePermutedToo) {
  Sources sources = Dense();
  sources.push_back(Count(kLayer + "self_attn.k_proj.bias", {4}, 0, SafetensorsType::kF16));
  MemoryFolder folder = Folder(Config("llama"), sources);
  EXPECT_EQ(Values(MustRead(folder), "blk.0.attn_k.bias"), (Floats{0, 2, 1, 3}));
}

TEST(HfFolder, GemmaNormsGetTheirOne) {
  json config = Config("gemma2");
  config.update({{"attn_logit_softcapping", 50.0},
                 {"final_logit_softcapping", 30.0},
                 {"sliding_window", 16},
                 {"query_pre_attn_scalar", 16},
                 {"hidden_activation", "gelu_pytorch_tanh"}});
  Sources sources = Dense();
  sources.push_back(Count(kLayer + "pre_feedforward_layernorm.weight", {3}));
  sources.push_back(Count(kLayer + "post_feedforward_layernorm.weight", {3}));
  MemoryFolder folder = Folder(config, sources);
  const GgufFile file = MustRead(folder);
  EXPECT_EQ(*file.GetFloat("gemma2.attn_logit_softcapping"), 50);
  EXPECT_EQ(*file.GetFloat("gemma2.final_logit_softcapping"), 30);
  EXPECT_EQ(*file.GetInt("gemma2.attention.sliding_window"), 16);
  EXPECT_EQ(*file.GetFloat("gemma2.attention.scale"), 0.25);
  EXPECT_EQ(Values(file, "blk.0.post_attention_norm.weight"), (Floats{1, 2, 3}));
  EXPECT_EQ(Values(file, "blk.0.ffn_norm.weight"), (Floats{1, 2, 3}));
  EXPECT_EQ(Values(file, "blk.0.post_ffw_norm.weight"), (Floats{1, 2, 3}));
  EXPECT_EQ(Values(file, "blk.0.attn_norm.weight"), (Floats{1.5f, 2.5f, 3.5f}));
  EXPECT_EQ(Values(file, "output_norm.weight"), (Floats{1, 2, 3}));
  config["hidden_activation"] = "relu";
  ExpectError(Folder(config, sources), StatusCode::kUnsupported, "is 'relu'; supported: gelu");
}

TEST(HfFolder, Gemma3WithPicturesIsItsLanguageModel) {
  json text = Config("gemma3_text");
  text.update({{"sliding_window", 16},
               {"rope_local_base_freq", 10000.0},
               {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  Sources sources = Dense();
  sources.push_back(Count(kLayer + "self_attn.q_norm.weight", {4}));
  for (SafetensorsSource& s : sources) s.name = "language_model." + s.name;
  sources.push_back(Count("vision_tower.x", {1}));
  const json config = {{"model_type", "gemma3"}, {"text_config", text}};
  MemoryFolder folder = Folder(config, sources);
  const GgufFile file = MustRead(folder);
  EXPECT_EQ(*file.GetString("gemma3.rope.scaling.type"), "linear");
  EXPECT_EQ(*file.GetFloat("gemma3.rope.scaling.factor"), 8);
  EXPECT_EQ(*file.GetFloat("gemma3.rope.freq_base_swa"), 10000);
  EXPECT_EQ(Values(file, "blk.0.attn_q_norm.weight"), (Floats{1, 2, 3, 4}));
  EXPECT_EQ(file.FindTensor("vision_tower.x"), nullptr);
}

TEST(HfFolder, LayerTypesAreTheRuleOrSpelledOut) {
  json config = Config("gemma2");
  config.update({{"attn_logit_softcapping", 50.0},
                 {"final_logit_softcapping", 30.0},
                 {"sliding_window", 16},
                 {"num_hidden_layers", 2}});
  config["layer_types"] = {"sliding_attention", "full_attention"};
  MemoryFolder rule = Folder(config, Dense());
  EXPECT_FALSE(MustRead(rule).Has("gemma2.attention.sliding_window_pattern"));
  config["layer_types"] = {"full_attention", "sliding_attention"};
  MemoryFolder other = Folder(config, Dense());
  EXPECT_EQ(*MustRead(other).GetInts("gemma2.attention.sliding_window_pattern"),
            (std::vector<int64_t>{0, 1}));
  config["layer_types"] = {"full_attention"};
  ExpectError(Folder(config, Dense()), StatusCode::kInvalidArgument, "is not a list of 2 layers");
  config["layer_types"] = {"full_attention", "mamba"};
  ExpectError(Folder(config, Dense()), StatusCode::kUnsupported, "names a layer that is neither");
}

TEST(HfFolder, ExpertsAreStacked) {
  json config = Config("mixtral");
  config.update({{"num_local_experts", 2}, {"num_experts_per_tok", 1}});
  Sources sources = Attention();
  const std::string moe = kLayer + "block_sparse_moe.";
  sources.push_back(Count(moe + "gate.weight", {2, 3}, 0, SafetensorsType::kBF16));
  for (const char* e : {"0", "1"}) {
    const float first = e[0] == '0' ? 0.0f : 100.0f;
    sources.push_back(Count(moe + "experts." + e + ".w1.weight", {2, 3}, first));
    sources.push_back(Count(moe + "experts." + e + ".w2.weight", {3, 2}, first));
    sources.push_back(Count(moe + "experts." + e + ".w3.weight", {2, 3}, first));
  }
  MemoryFolder folder = Folder(config, sources);
  const GgufFile file = MustRead(folder);
  EXPECT_EQ(*file.GetString("general.architecture"), "llama");
  EXPECT_EQ(*file.GetInt("llama.expert_count"), 2);
  EXPECT_EQ(*file.GetInt("llama.expert_used_count"), 1);
  EXPECT_EQ(Shape(file, "blk.0.ffn_gate_exps.weight"), (std::vector<int64_t>{3, 2, 2}));
  EXPECT_EQ(Shape(file, "blk.0.ffn_down_exps.weight"), (std::vector<int64_t>{2, 3, 2}));
  EXPECT_EQ(Values(file, "blk.0.ffn_up_exps.weight"),
            (Floats{0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105}));
  EXPECT_EQ(Values(file, "blk.0.ffn_gate_inp.weight"), (Floats{0, 1, 2, 3, 4, 5}));
  file.Release(*file.FindTensor("blk.0.ffn_up_exps.weight"));
  EXPECT_EQ(Values(file, "blk.0.ffn_up_exps.weight")[11], 105);

  Sources fewer = sources;
  fewer.pop_back();
  ExpectError(Folder(config, fewer), StatusCode::kDataLoss, "expert 1 of 2 for 'blk.0.ffn_up_exps");
  config["num_local_experts"] = 1;
  ExpectError(Folder(config, sources), StatusCode::kDataLoss, "of an expert beyond the 1");
}

TEST(HfFolder, GptOssExpertsAreTurnedAndTakenApart) {
  json config = Config("gpt_oss");
  config.update({{"num_local_experts", 2}, {"num_experts_per_tok", 1}, {"sliding_window", 8}});
  Sources sources = Attention();
  const std::string mlp = kLayer + "mlp.experts.";
  sources.push_back(Count(kLayer + "self_attn.sinks", {2}, 0, SafetensorsType::kBF16));
  sources.push_back(Count(mlp + "gate_up_proj", {2, 3, 4}));
  sources.push_back(Count(mlp + "gate_up_proj_bias", {2, 4}));
  sources.push_back(Count(mlp + "down_proj", {2, 2, 3}));
  sources.push_back(Count(mlp + "down_proj_bias", {2, 3}));
  MemoryFolder folder = Folder(config, sources);
  const GgufFile file = MustRead(folder);
  EXPECT_EQ(*file.GetInt("gpt-oss.expert_feed_forward_length"), 2);
  EXPECT_EQ(Values(file, "blk.0.attn_sinks.weight"), (Floats{0, 1}));
  EXPECT_EQ(Shape(file, "blk.0.ffn_gate_exps.weight"), (std::vector<int64_t>{3, 2, 2}));
  EXPECT_EQ(Values(file, "blk.0.ffn_gate_exps.weight"),
            (Floats{0, 4, 8, 2, 6, 10, 12, 16, 20, 14, 18, 22}));
  EXPECT_EQ(Values(file, "blk.0.ffn_up_exps.weight"),
            (Floats{1, 5, 9, 3, 7, 11, 13, 17, 21, 15, 19, 23}));
  EXPECT_EQ(Shape(file, "blk.0.ffn_down_exps.weight"), (std::vector<int64_t>{2, 3, 2}));
  EXPECT_EQ(Values(file, "blk.0.ffn_down_exps.weight"),
            (Floats{0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}));
  EXPECT_EQ(Values(file, "blk.0.ffn_gate_exps.bias"), (Floats{0, 2, 4, 6}));
  EXPECT_EQ(Values(file, "blk.0.ffn_up_exps.bias"), (Floats{1, 3, 5, 7}));
  EXPECT_EQ(Shape(file, "blk.0.ffn_down_exps.bias"), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(Shape(file, "blk.0.post_attention_norm.weight"), std::vector<int64_t>{3});
}

TEST(HfFolder, Phi3FactorsBecomeTensors) {
  json config = Config("phi3");
  config.update(
      {{"original_max_position_embeddings", 16},
       {"rope_scaling",
        {{"type", "longrope"}, {"long_factor", {2.0, 4.0}}, {"short_factor", {1.0, 1.5}}}}});
  Sources sources = {Count("model.embed_tokens.weight", {2, 3}), Count("model.norm.weight", {3}),
                     Count(kLayer + "self_attn.qkv_proj.weight", {16, 3}),
                     Count(kLayer + "mlp.gate_up_proj.weight", {4, 3})};
  MemoryFolder folder = Folder(config, sources);
  const GgufFile file = MustRead(folder);
  EXPECT_EQ(Values(file, "rope_factors_long.weight"), (Floats{2, 4}));
  EXPECT_EQ(Values(file, "rope_factors_short.weight"), (Floats{1, 1.5f}));
  EXPECT_EQ(*file.GetInt("phi3.rope.scaling.original_context_length"), 16);
  EXPECT_NEAR(*file.GetFloat("phi3.rope.scaling.attn_factor"), std::sqrt(1.5), 1e-12);
  EXPECT_EQ(Shape(file, "blk.0.attn_qkv.weight"), (std::vector<int64_t>{3, 16}));
  EXPECT_EQ(Shape(file, "blk.0.ffn_up.weight"), (std::vector<int64_t>{3, 4}));
  config["rope_scaling"]["long_factor"] = {2.0};
  ExpectError(Folder(config, sources), StatusCode::kInvalidArgument, "is not a list of 2 numbers");
}

TEST(HfFolder, Llama3FactorsBecomeATensor) {
  json config = Config("llama");
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  config["rope_theta"] = 100.0;
  MemoryFolder folder = Folder(config, Dense());
  // Wavelengths 2 pi (short: 1) and 20 pi, between 16 and 64: 0.3395 of the way.
  const Floats factors = Values(MustRead(folder), "rope_freqs.weight");
  ASSERT_EQ(factors.size(), 2u);
  EXPECT_EQ(factors[0], 1);
  const double smooth = (64 / (20 * M_PI) - 1) / 3;
  EXPECT_NEAR(factors[1], 1 / ((1 - smooth) / 8 + smooth), 1e-5);
}

TEST(HfFolder, YarnKeysAreCopied) {
  json config = Config("qwen2");
  config["rope_scaling"] = {{"type", "yarn"},
                            {"factor", 4.0},
                            {"beta_fast", 32.0},
                            {"original_max_position_embeddings", 16}};
  MemoryFolder folder = Folder(config, Dense());
  const GgufFile file = MustRead(folder);
  EXPECT_EQ(*file.GetString("qwen2.rope.scaling.type"), "yarn");
  EXPECT_EQ(*file.GetFloat("qwen2.rope.scaling.factor"), 4);
  EXPECT_EQ(*file.GetInt("qwen2.rope.scaling.original_context_length"), 16);
  EXPECT_EQ(*file.GetFloat("qwen2.rope.scaling.yarn_beta_fast"), 32);
  config["rope_scaling"]["type"] = "dynamic";
  ExpectError(Folder(config, Dense()), StatusCode::kUnsupported, "rope scaling 'dynamic'");
}

TEST(HfFolder, QuantizedCheckpointsAreRefusedByName) {
  for (const char* method : {"awq", "gptq", "compressed-tensors", "fp8", "bitsandbytes"}) {
    json config = Config("llama");
    config["quantization_config"] = {{"quant_method", method}};
    ExpectError(
        Folder(config, Dense()), StatusCode::kUnsupported,
        std::string("method '") + method + "'), and that format is not read; take a 16-bit");
  }
  json config = Config("gpt_oss");
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  ExpectError(Folder(config, Dense()), StatusCode::kUnsupported,
              "method 'mxfp4'), and that format is not read; take a 16-bit checkpoint of the "
              "model, and 'tq quantize FOLDER --to int4 --out FILE.gguf' makes its weights small; "
              "or take a GGUF file of it");
}

TEST(HfFolder, KeysThatAreLeftOutAreTheDefaultsOfTheClass) {
  json text = Config("gemma3_text");
  for (const char* key : {"max_position_embeddings", "rms_norm_eps", "vocab_size", "head_dim",
                          "num_attention_heads", "num_key_value_heads"}) {
    text.erase(key);
  }
  text["_sliding_window_pattern"] = 3;
  MemoryFolder gemma = Folder({{"model_type", "gemma3"}, {"text_config", text}}, {});
  const GgufFile file = MustRead(gemma);
  EXPECT_EQ(*file.GetInt("gemma3.context_length"), 131072);
  EXPECT_EQ(*file.GetInt("gemma3.vocab_size"), 262208);
  EXPECT_EQ(*file.GetInt("gemma3.attention.head_count"), 8);
  EXPECT_EQ(*file.GetInt("gemma3.attention.head_count_kv"), 4);
  EXPECT_EQ(*file.GetInt("gemma3.attention.key_length"), 256);
  EXPECT_EQ(*file.GetInt("gemma3.attention.sliding_window"), 4096);
  EXPECT_EQ(*file.GetInt("gemma3.attention.sliding_window_pattern"), 3);
  EXPECT_EQ(*file.GetFloat("gemma3.attention.layer_norm_rms_epsilon"), 1e-6);
  for (const auto& [type, key, head_dim] : {std::tuple{"qwen3", "qwen3.attention.key_length", 128},
                                            {"gemma2", "gemma2.attention.key_length", 256},
                                            {"gpt_oss", "gpt-oss.attention.key_length", 64}}) {
    json config = Config(type);
    config.erase("head_dim");
    MemoryFolder folder = Folder(config, {});
    EXPECT_EQ(*MustRead(folder).GetInt(key), head_dim);
  }
}

TEST(HfFolder, NullIsOffAndNotTheDefault) {
  json config = Config("gemma2");
  config.update({{"attn_logit_softcapping", nullptr},
                 {"final_logit_softcapping", nullptr},
                 {"sliding_window", nullptr}});
  MemoryFolder off = Folder(config, {});
  const GgufFile file = MustRead(off);
  for (const char* key : {"gemma2.attn_logit_softcapping", "gemma2.final_logit_softcapping"}) {
    ASSERT_TRUE(file.Has(key));
    EXPECT_EQ(*file.GetFloat(key), 0);
  }
  ASSERT_TRUE(file.Has("gemma2.attention.sliding_window"));
  EXPECT_EQ(*file.GetInt("gemma2.attention.sliding_window"), 0);
}

TEST(HfFolder, LayersAndExpertsAreBounded) {
  json config = Config("mixtral");
  config.update({{"num_local_experts", 1025}, {"num_experts_per_tok", 1}});
  ExpectError(Folder(config, Attention()), StatusCode::kInvalidArgument,
              "'num_local_experts' of 'config.json' is 1025; expected 0 to 1024");
  config["num_local_experts"] = 8;
  config["num_hidden_layers"] = 1025;
  ExpectError(Folder(config, Attention()), StatusCode::kInvalidArgument,
              "'num_hidden_layers' of 'config.json' is 1025; expected 1 to 1024");
}

TEST(HfFolder, DeepJsonIsAnError) {
  const auto nested = [](const std::string& open, const std::string& close, size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) out += open;
    out += "1";
    for (size_t i = 0; i < n; ++i) out += close;
    return out;
  };
  const std::string deep = nested("[", "]", 200000);
  std::string config = Config("llama").dump();
  config.back() = ',';
  MemoryFolder folder = Folder(Config("llama"), Dense());
  folder.files["config.json"] = config + "\"eos_token_id\":" + deep + "}";
  ExpectError(folder, StatusCode::kDataLoss, "'config.json' nests more than 100 deep");
  folder.files["config.json"] = config + "\"eos_token_id\":" + nested("[", "]", 99) + "}";
  EXPECT_EQ(MustRead(folder).tensors().size(), 11u) << "what is not used may nest a little";
  folder.files["tokenizer.json"] = "{}";
  for (const std::string& value : {deep, nested("{\"content\":", "}", 200000)}) {
    folder.files["tokenizer_config.json"] = "{\"chat_template\":" + value + "}";
    ExpectError(folder, StatusCode::kDataLoss, "'tokenizer_config.json' nests more than 100 deep");
  }
}

TEST(HfFolder, RefusesWhatItDoesNotKnow) {
  ExpectError(MemoryFolder(), StatusCode::kNotFound, "there is no config.json");
  ExpectError(Folder(Config("mamba"), Dense()), StatusCode::kUnsupported,
              "model_type 'mamba' of 'config.json' is not supported; supported: llama, mistral");
  json config = Config("llama");
  config.erase("hidden_size");
  ExpectError(Folder(config, Dense()), StatusCode::kInvalidArgument, "'hidden_size' of");
  config["hidden_size"] = "3";
  ExpectError(Folder(config, Dense()), StatusCode::kInvalidArgument, "is string; an integer");
  config["hidden_size"] = -3;
  ExpectError(Folder(config, Dense()), StatusCode::kInvalidArgument, "is -3; expected 0 or more");
  ExpectError(Folder({{"model_type", "gemma3"}, {"text_config", 5}}, Dense()),
              StatusCode::kInvalidArgument, "'num_hidden_layers' of");
  MemoryFolder pickled;
  pickled.files = {{"config.json", Config("llama").dump()}, {"pytorch_model.bin", ""}};
  ExpectError(pickled, StatusCode::kUnsupported, "a pickle, which can run any program");
  pickled.files.erase("pytorch_model.bin");
  ExpectError(pickled, StatusCode::kNotFound, "has neither model.safetensors nor");
  Sources more = Dense();
  more.push_back(Count(kLayer + "mlp.up_proj.bias", {2}));
  ExpectError(Folder(Config("llama"), more), StatusCode::kUnsupported,
              "tensor 'model.layers.0.mlp.up_proj.bias' [2] has no place in a llama model");
  more.back().name = "model.layers.1.mlp.up_proj.weight";
  ExpectError(Folder(Config("llama"), more), StatusCode::kDataLoss, "of a layer beyond the 1");
  more.back() = Count(kLayer + "self_attn.rotary_emb.inv_freq", {2});
  MemoryFolder skipped = Folder(Config("llama"), more);
  EXPECT_EQ(MustRead(skipped).tensors().size(), 11u);
  more.back() = Count("lm_head.weight", {2, 0});
  ExpectError(Folder(Config("llama"), more), StatusCode::kDataLoss, "none of them 0");
}

MemoryFolder Sharded() {
  MemoryFolder folder;
  const Sources all = Dense();
  folder.files["config.json"] = Config("llama").dump();
  folder.files["a.safetensors"] = Bytes({all.begin(), all.begin() + 5});
  folder.files["b.safetensors"] = Bytes({all.begin() + 5, all.end()});
  json map;
  for (size_t i = 0; i < all.size(); ++i) {
    map[all[i].name] = i < 5 ? "a.safetensors" : "b.safetensors";
  }
  folder.files["model.safetensors.index.json"] = json({{"weight_map", map}}).dump();
  return folder;
}

TEST(HfFolder, ShardsAndIndexMustAgree) {
  MemoryFolder good = Sharded();
  EXPECT_EQ(MustRead(good).tensors().size(), 11u);
  MemoryFolder folder = good;
  folder.files.erase("b.safetensors");
  ExpectError(folder, StatusCode::kNotFound, "'b.safetensors', which model.safetensors.index.json");
  folder = good;
  folder.files["b.safetensors"] = folder.files["a.safetensors"];
  ExpectError(folder, StatusCode::kDataLoss, "is in both 'a.safetensors' and 'b.safetensors'");
  folder = good;
  std::swap(folder.files["a.safetensors"], folder.files["b.safetensors"]);
  ExpectError(folder, StatusCode::kDataLoss, "is elsewhere in model.safetensors.index.json");
  for (const auto& [from, to, message] :
       {std::tuple{"\"model.norm.weight\"", "\"model.norm.wight\"", "is not in model.safetensors"},
        {"a.safetensors", "../a.safetensors", "is not the name of a safetensors file"},
        {"\"a.safetensors\"", "1", "is not the name of a safetensors file"},
        {"weight_map", "weight_mop", "an object with the file of each tensor was expected"}}) {
    folder = good;
    std::string& index = folder.files["model.safetensors.index.json"];
    index.replace(index.find(from), std::strlen(from), to);
    const Status status = ReadHuggingFaceFolder(folder, "m").status();
    EXPECT_NE(status.message().find(message), std::string::npos) << status.ToString();
  }
  folder = good;
  std::string& index = folder.files["model.safetensors.index.json"];
  const std::string_view one = "\"model.norm.weight\"";
  index.replace(index.find(one), one.size(),
                "\"model.none\":\"a.safetensors\"," + std::string(one));
  ExpectError(folder, StatusCode::kDataLoss, "'a.safetensors' has no tensor 'model.none'");
}

TEST(HfFolder, EveryTruncationIsAnError) {
  const MemoryFolder good = Sharded();
  for (const auto& [name, bytes] : good.files) {
    for (size_t n = 0; n < bytes.size(); ++n) {
      MemoryFolder folder = good;
      folder.files[name].resize(n);
      const Status status = ReadHuggingFaceFolder(folder, "m").status();
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << name << " " << n << status.ToString();
    }
  }
}

TEST(HfFolder, EveryChangedByteIsAnErrorOrAModel) {
  const MemoryFolder good = Sharded();
  size_t models = 0;
  for (const auto& [name, bytes] : good.files) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      for (const int flip : {0x01, 0x10, 0x80}) {
        MemoryFolder folder = good;
        folder.files[name][i] = static_cast<char>(bytes[i] ^ flip);
        Result<GgufContents> contents = ReadHuggingFaceFolder(folder, "m");
        if (!contents.ok()) continue;
        const Result<GgufFile> file = GgufFile::FromContents(*std::move(contents));
        if (!file.ok()) continue;
        for (const GgufTensor& t : file->tensors()) {
          EXPECT_EQ(file->Data(t).bytes().size(), t.num_bytes()) << t.name;
        }
        ++models;
      }
    }
  }
  EXPECT_GT(models, 100u) << "weights may change";
}

TEST(HfFolder, OpensFromDisk) {
  const std::string path = testing::TempDir() + "/hf_model";
  std::filesystem::create_directory(path);
  for (const auto& [name, bytes] : Sharded().files) {
    ASSERT_TRUE(WriteFileAtomic(path + "/" + name, bytes).ok());
  }
  const Result<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(*file->GetString("general.name"), "hf_model");
  EXPECT_EQ(Values(*file, "blk.0.attn_k.weight")[3], 6);
  EXPECT_GT(file->file_bytes(), 500u);
  for (const GgufTensor& t : file->tensors()) file->Release(t);
  EXPECT_EQ(Values(*file, "token_embd.weight")[5], 5);
  const Status one = GgufFile::Open(path + "/a.safetensors").status();
  EXPECT_EQ(one.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(one.message().find("is one file of a model; name its folder"), std::string::npos);
  // A GGUF file is one whatever its name ends in.
  const std::string renamed = testing::TempDir() + "/renamed.bin";
  const std::string gguf = GgufBuilder().Tensor("a", GgmlType::kF32, {1}, "aaaa").Build();
  ASSERT_TRUE(WriteFileAtomic(renamed, gguf).ok());
  EXPECT_TRUE(GgufFile::Open(renamed).ok());
  ASSERT_TRUE(WriteFileAtomic(renamed, "pickle").ok());
  EXPECT_EQ(GgufFile::Open(renamed).status().code(), StatusCode::kInvalidArgument);
}

// --- Split GGUF files ---

GgufBuilder Part(uint32_t number, uint32_t count) {
  GgufBuilder b;
  b.Raw("split.no", 2, {reinterpret_cast<const char*>(&number), 2});
  b.Raw("split.count", 2, {reinterpret_cast<const char*>(&count), 2});
  return b.I32("split.tensors.count", 3);
}

class SplitGguf : public testing::Test {
 protected:
  void SetUp() override {
    Write(
        1,
        Part(0, 3).Text("general.architecture", "llama").Tensor("a", GgmlType::kF32, {1}, "aaaa"));
    Write(2, Part(1, 3).Tensor("b", GgmlType::kF32, {1}, "bbbb"));
    Write(3, Part(2, 3).Tensor("c", GgmlType::kF32, {1}, "cccc"));
  }
  // Tests run side by side: each has files of its own.
  static std::string Path(int number) {
    return testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() +
           "-0000" + std::to_string(number) + "-of-00003.gguf";
  }
  static void Write(int number, const GgufBuilder& b) {
    ASSERT_TRUE(WriteFileAtomic(Path(number), b.Build()).ok());
  }
  static void ExpectError(const std::string& path, StatusCode code, const std::string& part) {
    const Status status = GgufFile::Open(path).status();
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  }
};

TEST_F(SplitGguf, PartsAreOneModel) {
  const Result<GgufFile> file = GgufFile::Open(Path(1));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->metadata().size(), 1u) << "the keys of the split are gone";
  for (const char* name : {"a", "b", "c"}) {
    const GgufTensor* t = file->FindTensor(name);
    ASSERT_NE(t, nullptr) << name;
    file->Release(*t);
    EXPECT_EQ(static_cast<char>(file->Data(*t).bytes()[3]), *name);
  }
}

TEST_F(SplitGguf, EveryTruncationOfAPartIsAnError) {
  const Result<std::string> whole = ReadFile(Path(2));
  ASSERT_TRUE(whole.ok());
  for (size_t n = 0; n < whole->size(); ++n) {
    ASSERT_TRUE(WriteFileAtomic(Path(2), whole->substr(0, n)).ok());
    ExpectError(Path(1), StatusCode::kDataLoss, "-00002-of-00003.gguf");
  }
}

TEST_F(SplitGguf, PartsThatDoNotFitAreRefused) {
  ExpectError(Path(2), StatusCode::kInvalidArgument, "name its first part, '");
  Write(2, Part(1, 4).Tensor("b", GgmlType::kF32, {1}, "bbbb"));
  ExpectError(Path(1), StatusCode::kDataLoss, "says that it is part 2 of 4; part 2 of 3 was");
  Write(2, GgufBuilder().Tensor("b", GgmlType::kF32, {1}, "bbbb"));
  ExpectError(Path(1), StatusCode::kDataLoss, "the parts do not belong together");
  Write(2, Part(1, 3).Tensor("a", GgmlType::kF32, {1}, "bbbb"));
  ExpectError(Path(1), StatusCode::kDataLoss, "tensor 'a' appears twice");
  Write(2, Part(1, 3));
  ExpectError(Path(1), StatusCode::kDataLoss, "have 2 tensors; 3 were expected");
  std::filesystem::remove(Path(2));
  ExpectError(Path(1), StatusCode::kNotFound, "part 2 of 3 of the split model is missing");
  const std::string renamed = testing::TempDir() + "/renamed.gguf";
  std::filesystem::copy_file(Path(1), renamed, std::filesystem::copy_options::overwrite_existing);
  ExpectError(renamed, StatusCode::kInvalidArgument, "does not end in '-00001-of-00003.gguf'");
}

}  // namespace
}  // namespace tq
