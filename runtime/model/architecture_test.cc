#include <gtest/gtest.h>

#include "runtime/model/tiny_llama_for_test.h"

namespace tq {
namespace {

Result<Architecture> Read(TinyLlama tiny) {
  const std::string bytes = tiny.Build();
  TQ_ASSIGN_OR_RETURN(const GgufFile file,
                      GgufFile::Parse(std::as_bytes(std::span(bytes)), "tiny"));
  return Architecture::FromGguf(file);
}

void ExpectError(TinyLlama tiny, StatusCode code, const std::string& message) {
  const Status s = Read(std::move(tiny)).status();
  EXPECT_EQ(s.code(), code) << s.ToString();
  EXPECT_EQ(s.message(), message);
}

TinyLlama With(std::function<void(GgufBuilder&)> extra, std::string skip = "") {
  TinyLlama tiny;
  tiny.extra = std::move(extra);
  tiny.skip = std::move(skip);
  return tiny;
}

TEST(Architecture, ReadsShapes) {
  const auto a = Read({});
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  EXPECT_EQ(a->name, "llama");
  EXPECT_EQ(a->model_name, "Tiny");
  EXPECT_EQ(a->num_layers, 2);
  EXPECT_EQ(a->hidden_dim, 64);
  EXPECT_EQ(a->ffn_dim, 96);
  EXPECT_EQ(a->vocab_size, 50);
  EXPECT_EQ(a->num_q_heads, 4);
  EXPECT_EQ(a->num_kv_heads, 2);
  EXPECT_EQ(a->head_dim, 16);
  EXPECT_EQ(a->context_len, 4096);
  EXPECT_TRUE(a->tied_embeddings);
  ASSERT_EQ(a->rope.inv_freq.size(), 8u);
  EXPECT_EQ(a->rope.inv_freq[0], 1.0f);
  EXPECT_FLOAT_EQ(a->rope.inv_freq[4], 0.01f);
}

TEST(Architecture, HeadDimComesFromTheFile) {
  TinyLlama tiny;
  tiny.head_dim = 24;
  EXPECT_EQ(Read(tiny)->head_dim, 24);
}

TEST(Architecture, MissingKvHeadsAndRopeBaseHaveTheirDefaults) {
  TinyLlama tiny;
  tiny.skip = "llama.attention.head_count_kv";
  EXPECT_EQ(Read(tiny)->num_kv_heads, 4);
  tiny.skip = "llama.rope.freq_base";
  EXPECT_EQ(Read(tiny)->rope_base, 10000.0f);
}

TEST(Architecture, RopeScaling) {
  const auto linear = Read(With([](GgufBuilder& b) {
    b.Text("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4);
  }));
  ASSERT_TRUE(linear.ok()) << linear.status().ToString();
  EXPECT_EQ(linear->rope.inv_freq[0], 0.25f);
  std::string factors(8 * 4, '\0');
  const std::vector<float> values = {1, 1, 2, 2, 8, 8, 8, 8};
  std::memcpy(factors.data(), values.data(), factors.size());
  const auto llama3 = Read(
      With([&](GgufBuilder& b) { b.Tensor("rope_freqs.weight", GgmlType::kF32, {8}, factors); }));
  ASSERT_TRUE(llama3.ok()) << llama3.status().ToString();
  EXPECT_FLOAT_EQ(llama3->rope.inv_freq[4], 0.01f / 8);
  ExpectError(With([](GgufBuilder& b) { b.Text("llama.rope.scaling.type", "ntk"); }),
              StatusCode::kUnsupported,
              "llama.rope.scaling.type = 'ntk' is not supported; supported: none, linear, yarn, "
              "longrope, and the factors of a rope_freqs tensor");
  ExpectError(With([&](GgufBuilder& b) {
                b.Tensor("rope_freqs.weight", GgmlType::kF32, {4}, factors.substr(0, 16));
              }),
              StatusCode::kInvalidArgument,
              "rope_freqs.weight: expected 8 values of F32, found 4 of F32");
}

TEST(Architecture, RefusesWhatIsNotBuilt) {
  TinyLlama other;
  other.architecture = "mamba";
  ExpectError(other, StatusCode::kUnsupported,
              "architecture 'mamba' is not supported; supported: gemma2, gemma3, gpt-oss, llama, "
              "phi3, qwen2, qwen3, qwen3moe");
  ExpectError(With([](GgufBuilder& b) { b.U32("llama.expert_shared_count", 1); }),
              StatusCode::kUnsupported,
              "shared experts (llama.expert_shared_count = 1) is not built for the architecture "
              "'llama'");
  ExpectError(With([](GgufBuilder& b) { b.Bool("llama.attention.causal", false); }),
              StatusCode::kUnsupported,
              "llama.attention.causal = false: only causal models run here");
  EXPECT_TRUE(Read(With([](GgufBuilder& b) { b.U32("llama.expert_count", 0); })).ok());
  ExpectError(With(
                  [](GgufBuilder& b) {
                    b.I32s("llama.attention.head_count_kv", {2, 1});
                  },
                  "llama.attention.head_count_kv"),
              StatusCode::kUnsupported,
              "llama.attention.head_count_kv differs from layer to layer (2 and 1); supported: "
              "layers of one shape");
  ExpectError(
      With([](GgufBuilder& b) { b.U32("llama.rope.dimension_count", 8); }),
      StatusCode::kUnsupported,
      "llama.rope.dimension_count = 8 differs from head_dim = 16: partial rotary embeddings "
      "are not built for the architecture 'llama'");
  ExpectError(With([](GgufBuilder& b) { b.U32("llama.attention.value_length", 8); }),
              StatusCode::kUnsupported,
              "llama.attention.value_length = 8 differs from the key's 16: only equal lengths are "
              "supported");
  ExpectError(With([](GgufBuilder& b) { b.Text("general.type", "adapter"); }),
              StatusCode::kUnsupported,
              "general.type = 'adapter': a file of that kind holds no whole model");
}

TEST(Architecture, NamesTheKeyThatIsWrong) {
  const auto replaced = [](const std::string& key, uint32_t value) {
    return With([=](GgufBuilder& b) { b.U32(key, value); }, key);
  };
  ExpectError(replaced("llama.block_count", 0), StatusCode::kInvalidArgument,
              "llama.block_count = 0: expected 1 to 1024");
  ExpectError(replaced("llama.embedding_length", 1u << 31), StatusCode::kInvalidArgument,
              "llama.embedding_length = 2147483648: expected 1 to 131072");
  ExpectError(replaced("llama.attention.head_count_kv", 3), StatusCode::kInvalidArgument,
              "llama.attention.head_count = 4 is not a multiple of llama.attention.head_count_kv = "
              "3");
  ExpectError(
      replaced("llama.attention.head_count", 6), StatusCode::kInvalidArgument,
      "llama.embedding_length = 64 is not a multiple of llama.attention.head_count = 6, and "
      "there is no llama.attention.key_length");
  ExpectError(With([](GgufBuilder& b) { b.U32("llama.attention.key_length", 17); }),
              StatusCode::kInvalidArgument, "head_dim = 17: expected an even number of 2 to 512");
  ExpectError(
      With([](GgufBuilder& b) { b.F32("llama.attention.layer_norm_rms_epsilon", std::nanf("")); },
           "llama.attention.layer_norm_rms_epsilon"),
      StatusCode::kInvalidArgument,
      "llama.attention.layer_norm_rms_epsilon = nan: expected 0 to 0.1");
  ExpectError(With([](GgufBuilder& b) { b.U32("llama.vocab_size", 51); }),
              StatusCode::kInvalidArgument,
              "llama.vocab_size = 51, but token_embd.weight has 50 rows");
  ExpectError(With({}, "token_embd.weight"), StatusCode::kInvalidArgument,
              "tensor 'token_embd.weight' is missing");
  EXPECT_EQ(Read(With({}, "llama.block_count")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Read(With({}, "general.architecture")).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace tq
