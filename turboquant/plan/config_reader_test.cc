// Published configurations, with the plain FP16 cache of one sequence derived by hand.
#include "turboquant/plan/config_reader.h"

#include <gtest/gtest.h>

#include "turboquant/plan/cache_plan.h"

namespace tq {
namespace {

size_t F16Bytes(const ModelSpec& spec, int64_t tokens) {
  const Result<CachePlan> plan = CachePlan::Create(spec, CacheFormat{});
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan->F16Bytes(tokens);
}

ModelSpec Read(const char* json) {
  Result<ModelSpec> spec = ReadModelConfig(json, "config.json");
  EXPECT_TRUE(spec.ok()) << spec.status().ToString();
  return spec.ok() ? *spec : ModelSpec{};
}

// Gemma 3 27B: 62 layers, every sixth of them full: 10 full, 52 with a window of 1024. 16 KV heads
// of 128 hold 2 x 16 x 128 x 2 = 8192 bytes a token and layer.
//   10 x 8192 x 131,072 + 52 x 8192 x 1024 = 10,737,418,240 + 436,207,616 = 11,173,625,856
TEST(ReadModelConfig, Gemma3At131072) {
  const ModelSpec spec = Read(R"({"model_type": "gemma3", "text_config": {
      "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376,
      "intermediate_size": 21504, "num_attention_heads": 32, "num_hidden_layers": 62,
      "num_key_value_heads": 16, "sliding_window": 1024}})");
  EXPECT_EQ(spec.DescribeLayers(), "52 window(1024) 16 x 128, 10 full 16 x 128");
  EXPECT_EQ(F16Bytes(spec, 131072), 11173625856u);
  // The fields that this configuration leaves to the defaults are named.
  ASSERT_EQ(spec.notes.size(), 4u);
  EXPECT_EQ(spec.notes[0], "config.json has no vocab_size: 262208, the default of gemma3_text");
  // 27.0 G weights are published for the language model.
  EXPECT_NEAR(spec.params(), 27.0e9, 0.1e9);
}

// A hybrid of 64 layers, every fourth full: 16 full with 4 KV heads of 256, 48 gated delta nets.
//   full:  16 x 2 x 4 x 256 x 2 bytes x 262,144 = 17,179,869,184 (16 GiB)
//   state: 48 x (48 heads x 128 x 128 x 4 bytes + (2 x 16 x 128 + 48 x 128) x 3 x 2 bytes)
//        = 48 x (3,145,728 + 61,440) = 153,944,064
TEST(ReadModelConfig, HybridOf64LayersAt262144) {
  const ModelSpec spec = Read(R"({"model_type": "qwen3_5", "tie_word_embeddings": false,
      "text_config": {"model_type": "qwen3_5_text", "hidden_size": 5120,
      "intermediate_size": 17408, "num_hidden_layers": 64, "num_attention_heads": 24,
      "num_key_value_heads": 4, "head_dim": 256, "full_attention_interval": 4,
      "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
      "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
      "max_position_embeddings": 262144, "vocab_size": 248320}})");
  EXPECT_EQ(spec.DescribeLayers(), "48 state 3207168 B, 16 full 4 x 256");
  EXPECT_EQ(F16Bytes(spec, 262144), 17179869184u + 153944064u);
  EXPECT_NEAR(spec.params(), 27e9, 0.5e9);
}

// DeepSeek-V3: 61 layers, a latent of 512 and a rotary part of 64, one for all heads.
//   61 x (512 + 64) x 2 bytes x 163,840 = 70,272 x 163,840 = 11,513,364,480
// (as 128 heads of keys and values it would be 61 x 128 x (192 + 128) x 2 x 163,840 = 818 GB).
constexpr char kDeepseekV3[] = R"({"model_type": "deepseek_v3", "first_k_dense_replace": 3,
      "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
      "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
      "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
      "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
      "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "tie_word_embeddings": false, "v_head_dim": 128, "vocab_size": 129280})";
TEST(ReadModelConfig, LatentsAt163840) {
  const ModelSpec spec = Read(kDeepseekV3);
  EXPECT_EQ(spec.DescribeLayers(), "61 latent 512 + 64");
  EXPECT_EQ(F16Bytes(spec, 163840), 11513364480u);
  // Published: 671 G weights, 37 G of them for a token.
  EXPECT_NEAR(spec.params(), 671e9, 1e9);
  EXPECT_NEAR(spec.active_params(), 37e9, 1e9);
}

// Qwen3-0.6B: head_dim is 128, not hidden_size / num_attention_heads = 64.
//   28 layers x 2 x 8 heads x 128 x 2 bytes x 40,960 = 114,688 x 40,960 = 4,697,620,480
TEST(ReadModelConfig, Qwen3At40960) {
  const ModelSpec spec = Read(R"({"model_type": "qwen3", "head_dim": 128, "hidden_size": 1024,
      "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
      "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
      "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
      "vocab_size": 151936})");
  EXPECT_EQ(spec.DescribeLayers(), "28 full 8 x 128");
  EXPECT_EQ(F16Bytes(spec, 40960), 4697620480u);
  // 151,936 x 1024 + 28 x (1024 x (2048 + 2 x 1024) + 2048 x 1024 + 3 x 1024 x 3072 + 2 x 1024 +
  // 2 x 128) + 1024 = 596,049,920, as published.
  EXPECT_EQ(spec.params(), 596049920);
  EXPECT_TRUE(spec.notes.empty());
}

// gpt-oss-20b: every second of 24 layers sees 128 tokens; 8 KV heads of 64: 2048 bytes a token.
//   12 x 2048 x 131,072 + 12 x 2048 x 128 = 3,221,225,472 + 3,145,728
TEST(ReadModelConfig, GptOss) {
  const ModelSpec spec = Read(R"({"model_type": "gpt_oss", "attention_bias": true,
      "experts_per_token": 4, "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
      "max_position_embeddings": 131072, "num_attention_heads": 64, "num_hidden_layers": 24,
      "num_key_value_heads": 8, "num_local_experts": 32, "sliding_window": 128,
      "tie_word_embeddings": false, "vocab_size": 201088})");
  EXPECT_EQ(F16Bytes(spec, 131072), 3221225472u + 3145728u);
  EXPECT_NEAR(spec.params(), 20.9e9, 0.1e9);
  EXPECT_NEAR(spec.active_params(), 3.6e9, 0.6e9);
}

// Mixtral 8x7B: all experts are weights, two are read. 46.7 G and 12.9 G are published.
TEST(ReadModelConfig, MixtureOfExperts) {
  const ModelSpec mixtral = Read(R"({"model_type": "mixtral", "hidden_size": 4096,
      "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
      "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "num_local_experts": 8, "sliding_window": null, "tie_word_embeddings": false,
      "vocab_size": 32000})");
  EXPECT_NEAR(mixtral.params(), 46.7e9, 0.05e9);
  EXPECT_NEAR(mixtral.active_params(), 12.75e9, 0.05e9);  // without the embedding's look-up
  const ModelSpec qwen = Read(R"({"model_type": "qwen3_moe", "decoder_sparse_step": 1,
      "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "mlp_only_layers": [],
      "max_position_embeddings": 40960, "moe_intermediate_size": 768, "num_attention_heads": 32,
      "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
      "num_key_value_heads": 4, "tie_word_embeddings": false, "vocab_size": 151936})");
  EXPECT_NEAR(qwen.params(), 30.5e9, 0.05e9);
  EXPECT_NEAR(qwen.active_params(), 3.0e9, 0.1e9);
}

TEST(ReadModelConfig, WindowsOfMistralGemma2AndQwen2) {
  const std::string head =
      R"("hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
         "num_attention_heads": 32, "num_hidden_layers": 4, "num_key_value_heads": 8,
         "vocab_size": 32000)";
  const auto layers = [&](const std::string& more) {
    return Read(("{" + head + ", " + more + "}").c_str()).DescribeLayers();
  };
  EXPECT_EQ(layers(R"("model_type": "mistral", "sliding_window": 4096)"), "4 window(4096) 8 x 128");
  EXPECT_EQ(layers(R"("model_type": "mistral", "sliding_window": null)"), "4 full 8 x 128");
  EXPECT_EQ(layers(R"("model_type": "phi3", "sliding_window": 2047)"), "4 window(2047) 8 x 128");
  EXPECT_EQ(layers(R"("model_type": "llama")"), "4 full 8 x 128");
  EXPECT_EQ(layers(R"("model_type": "gemma2", "sliding_window": 4096, "head_dim": 256)"),
            "2 window(4096) 8 x 256, 2 full 8 x 256");
  EXPECT_EQ(layers(R"("model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": true,
                      "max_window_layers": 3)"),
            "3 full 8 x 128, 1 window(1024) 8 x 128");
  EXPECT_EQ(layers(R"("model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": false,
                      "max_window_layers": 3)"),
            "4 full 8 x 128");
}

TEST(ReadModelConfig, ErrorsNameTheField) {
  const struct {
    const char* json;
    StatusCode code;
    const char* message;
  } cases[] = {
      {"[1]", StatusCode::kDataLoss, "'c.json' is not a JSON object (3 bytes)"},
      {"{", StatusCode::kDataLoss, "'c.json' is not a JSON object (1 bytes)"},
      {"{}", StatusCode::kInvalidArgument, "c.json: field 'model_type' is missing"},
      {R"({"model_type": 7})", StatusCode::kInvalidArgument,
       "c.json: field 'model_type' is 7; a string was expected"},
      {R"({"model_type": "rwkv9"})", StatusCode::kUnsupported,
       "c.json: field 'model_type' = 'rwkv9' is not a family the planner knows; supported: "},
      {R"({"model_type": "llama"})", StatusCode::kInvalidArgument,
       "c.json: field 'num_hidden_layers' is missing"},
      {R"({"model_type": "llama", "num_hidden_layers": "32"})", StatusCode::kInvalidArgument,
       "c.json: field 'num_hidden_layers' is \"32\"; a whole number was expected"},
      {R"({"model_type": "llama", "num_hidden_layers": 9e9, "hidden_size": 4096})",
       StatusCode::kInvalidArgument,
       "c.json: field 'num_hidden_layers' is 9000000000.0; a whole number was expected"},
      {R"({"model_type": "llama", "num_hidden_layers": 99999, "hidden_size": 4096,
           "vocab_size": 32000, "num_attention_heads": 32, "intermediate_size": 11008})",
       StatusCode::kInvalidArgument,
       "c.json: llama: field 'num_hidden_layers' = 99999; expected 1 to 4096"},
      {R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": -4,
           "vocab_size": 32000, "num_attention_heads": 32})",
       StatusCode::kInvalidArgument, "c.json: field 'hidden_size' = -4 is negative"},
      {R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4097,
           "vocab_size": 32000, "num_attention_heads": 32})",
       StatusCode::kInvalidArgument,
       "c.json: field 'head_dim' is missing and hidden_size = 4097 is not a multiple of "
       "num_attention_heads = 32"},
      {R"({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
           "vocab_size": 32000, "num_attention_heads": 32})",
       StatusCode::kInvalidArgument, "c.json: llama: field 'intermediate_size' is missing"},
      {R"({"model_type": "gemma2", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 10,
           "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 8,
           "layer_types": ["full_attention", "chunked_attention"]})",
       StatusCode::kUnsupported,
       "c.json: field 'layer_types' has 'chunked_attention'; supported: full_attention, "},
      {R"({"model_type": "gemma2", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 10,
           "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 8,
           "layer_types": ["full_attention"]})",
       StatusCode::kInvalidArgument,
       "c.json: gemma2: field 'layer_types' names 1 layers; num_hidden_layers is 2"},
      {R"({"model_type": "deepseek_v3", "num_hidden_layers": 2, "hidden_size": 64,
           "vocab_size": 10, "num_attention_heads": 2, "q_lora_rank": null})",
       StatusCode::kInvalidArgument, "c.json: field 'kv_lora_rank' is missing"},
  };
  for (const auto& c : cases) {
    const Status status = ReadModelConfig(c.json, "c.json").status();
    EXPECT_EQ(status.code(), c.code) << c.json << ": " << status.message();
    EXPECT_EQ(status.message().rfind(c.message, 0), 0u) << status.message();
  }
}

TEST(ReadModelConfig, ValuesOfManyPartsAreNamedNotShown) {
  const std::string deep = std::string(90, '[') + std::string(90, ']');
  const Status status =
      ReadModelConfig(R"({"model_type": "llama", "num_hidden_layers": )" + deep + "}", "c")
          .status();
  EXPECT_EQ(status.message(), "c: field 'num_hidden_layers' is array; a whole number was expected");
}

// Any text at all gives a spec or a Status; a configuration cut at each byte too.
TEST(ReadModelConfig, TruncatedAtEachByte) {
  const std::string whole = kDeepseekV3;
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_FALSE(ReadModelConfig(whole.substr(0, n), "c").ok()) << n;
  }
}

TEST(CachePlan, KindsOfLayers) {
  ModelSpec spec = Read(kDeepseekV3);
  const Result<CacheFormat> k4 = CacheFormat::FromPreset("k4v4", {});
  const Result<CachePlan> plan = CachePlan::Create(spec, *k4);
  ASSERT_TRUE(plan.ok());
  // Latent: two halves of 256 at 4 bits with a scale each, 64 x 256 + 128 = 16,512 and 8; rotary
  // part in 16 bit: 64 x 64 x 2 = 8192 and 8.
  EXPECT_NEAR(plan->bits_per_value(), 8.0 * (16512 + 8 + 8192 + 8) / (64 * 576), 1e-9);
  // Every device holds the whole latent.
  EXPECT_EQ(CachePlan::Create(spec, *k4, 8)->At(10000, 128).payload, plan->At(10000, 128).payload);

  // A window keeps what the next token sees, and would see after a rollback of 64, in whole blocks
  // of 16 bit: of 100,000 tokens the positions from 99,837 on, in blocks 1559 to 1562. A chunk of
  // 128 up to 99,968 needs blocks 1557 to 1561.
  LayerSpec window;
  window.kind = LayerKind::kWindow;
  window.num_kv_heads = 2;
  window.head_dim = 64;
  window.window = 100;
  spec.layers = {window};
  const Result<CachePlan> windowed = CachePlan::Create(spec, *k4);
  const size_t block = size_t{2} * 2 * 64 * 64 * 2;
  EXPECT_EQ(windowed->At(64, 128).windows, block);
  EXPECT_EQ(windowed->At(100000, 128).windows, 4 * block);
  EXPECT_EQ(windowed->At(100000, 128).in_flight, 1 * block);
  EXPECT_EQ(windowed->F16Bytes(100000), size_t{100} * 2 * 2 * 64 * 2);
  EXPECT_EQ(windowed->quantized_layers(), 0);
}

// The runtime's rule (ReadWindows): a window as long as what is read cuts nothing.
TEST(ReadModelConfig, WindowsAsLongAsTheContextCutNothing) {
  const auto layers = [](const char* window, int64_t context) {
    const std::string json = StrCat(
        R"({"model_type": "mistral", "hidden_size": 256, "intermediate_size": 512, )",
        R"("num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, )",
        R"("vocab_size": 100, "max_position_embeddings": 4096, "sliding_window": )", window, "}");
    const Result<ModelSpec> spec = ReadModelConfig(json, "c.json", context);
    return spec.ok() ? spec->DescribeLayers() : spec.status().ToString();
  };
  EXPECT_EQ(layers("4096", 0), "2 full 2 x 64");
  EXPECT_EQ(layers("5000", 4096), "2 full 2 x 64");
  EXPECT_EQ(layers("4096", 8192), "2 window(4096) 2 x 64");
  EXPECT_EQ(layers("4095", 0), "2 window(4095) 2 x 64");
}

TEST(ReadModelConfig, DeepNestingIsRefusedWherever) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  for (const std::string& json : {deep, R"({"model_type": "llama", "hidden_size": )" + deep + "}",
                                  R"({"text_config": {"layer_types": )" + deep + "}}"}) {
    const Status status = ReadModelConfig(json, "c.json").status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(status.message(), "'c.json' nests more than 100 deep");
  }
}

}  // namespace
}  // namespace tq
