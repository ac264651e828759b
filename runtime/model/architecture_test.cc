#include <gtest/gtest.h>

#include <cmath>

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

// A file of another family with the keys of a tiny llama.
Result<Architecture> ReadAs(const std::string& arch, std::function<void(GgufBuilder&)> extra) {
  GgufBuilder b;
  b.Text("general.architecture", arch)
      .U32(arch + ".block_count", 6)
      .U32(arch + ".context_length", 4096)
      .U32(arch + ".embedding_length", 64)
      .U32(arch + ".feed_forward_length", 96)
      .U32(arch + ".attention.head_count", 4)
      .F32(arch + ".attention.layer_norm_rms_epsilon", 1e-6f);
  if (extra) extra(b);
  b.Tensor("token_embd.weight", GgmlType::kF32, {64, 2}, std::string(64 * 2 * 4, '\0'));
  const std::string bytes = b.Build();
  TQ_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Parse(std::as_bytes(std::span(bytes)), "t"));
  return Architecture::FromGguf(file);
}

TEST(Architecture, AWindowOfTheTrainedLengthCutsBeyondIt) {
  TinyLlama tiny = With([](GgufBuilder& b) { b.U32("llama.attention.sliding_window", 4096); });
  const std::string bytes = tiny.Build();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "tiny");
  ASSERT_TRUE(file.ok());
  const auto windows = [&](int64_t context) {
    return Architecture::FromGguf(*file, context)->windows;
  };
  EXPECT_EQ(windows(0), std::vector<int>{});
  EXPECT_EQ(windows(100), std::vector<int>{});
  EXPECT_EQ(windows(4096), std::vector<int>{});
  EXPECT_EQ(windows(4097), std::vector<int>(2, 4096));
}

TEST(Architecture, WindowsByPeriodByPatternAndByDefault) {
  const auto windows = [](const std::string& arch, std::function<void(GgufBuilder&)> extra) {
    const auto a = ReadAs(arch, std::move(extra));
    EXPECT_TRUE(a.ok()) << a.status().ToString();
    return a.ok() ? a->windows : std::vector<int>{-1};
  };
  const auto window = [](const char* arch, uint32_t n) {
    return [=](GgufBuilder& b) { b.U32(StrCat(arch, ".attention.sliding_window"), n); };
  };
  EXPECT_EQ(windows("gemma3", window("gemma3", 512)),
            (std::vector<int>{512, 512, 512, 512, 512, 0}));
  EXPECT_EQ(windows("gemma3", {}), std::vector<int>{});
  EXPECT_EQ(windows("gemma2", window("gemma2", 100)), (std::vector<int>{100, 0, 100, 0, 100, 0}));
  EXPECT_EQ(windows("gemma2", {}), std::vector<int>{});  // 4096, as long as the context
  EXPECT_EQ(windows("phi3", window("phi3", 2047)), std::vector<int>(6, 2047));
  EXPECT_EQ(windows("phi3", window("phi3", 0)), std::vector<int>{});
  EXPECT_EQ(windows("llama", window("llama", 4096)), std::vector<int>{});
  EXPECT_EQ(windows("gemma3",
                    [&](GgufBuilder& b) {
                      window("gemma3", 512)(b);
                      b.U32("gemma3.attention.sliding_window_pattern", 3);
                    }),
            (std::vector<int>{512, 512, 0, 512, 512, 0}));
  EXPECT_EQ(windows("qwen2",
                    [&](GgufBuilder& b) {
                      window("qwen2", 512)(b);
                      b.I32s("qwen2.attention.sliding_window_pattern", {0, 0, 0, 1, 1, 1});
                    }),
            (std::vector<int>{0, 0, 0, 512, 512, 512}));
  const auto wrong = ReadAs("qwen2", [&](GgufBuilder& b) {
    window("qwen2", 512)(b);
    b.I32s("qwen2.attention.sliding_window_pattern", {0, 1});
  });
  EXPECT_EQ(wrong.status().message(),
            "qwen2.attention.sliding_window_pattern names 2 layers; there are 6");
}

TEST(Architecture, WhatGemmasFilesLeaveOut) {
  const auto two = ReadAs("gemma2", {});
  ASSERT_TRUE(two.ok()) << two.status().ToString();
  EXPECT_EQ(two->attention_softcap, 50);
  EXPECT_EQ(two->logit_softcap, 30);
  EXPECT_EQ(two->attention_scale, 0);  // 1 / sqrt(head_dim)
  const auto three = ReadAs("gemma3", [](GgufBuilder& b) {
    b.U32("gemma3.attention.sliding_window", 512)
        .F32("gemma3.rope.freq_base", 1e6f)
        .Text("gemma3.rope.scaling.type", "linear")
        .F32("gemma3.rope.scaling.factor", 8)
        .F32("gemma3.attention.scale", 0.25f);
  });
  ASSERT_TRUE(three.ok()) << three.status().ToString();
  EXPECT_EQ(three->attention_softcap, 0);
  EXPECT_EQ(three->attention_scale, 0.25f);
  EXPECT_FLOAT_EQ(three->rope.inv_freq[1], static_cast<float>(std::pow(1e6, -2.0 / 16) / 8));
  EXPECT_FLOAT_EQ(three->window_rope.inv_freq[1], static_cast<float>(std::pow(1e4, -2.0 / 16)));
  EXPECT_EQ(&three->rope_of(0), &three->window_rope);
  EXPECT_EQ(&three->rope_of(5), &three->rope);
}

TEST(Architecture, Experts) {
  const auto keys = [](uint32_t count, uint32_t used) {
    return [=](GgufBuilder& b) {
      b.U32("qwen3moe.expert_count", count)
          .U32("qwen3moe.expert_used_count", used)
          .U32("qwen3moe.expert_feed_forward_length", 32);
    };
  };
  const auto a = ReadAs("qwen3moe", keys(8, 2));
  ASSERT_TRUE(a.ok()) << a.status().ToString();
  EXPECT_EQ(a->num_experts, 8);
  EXPECT_EQ(a->num_experts_used, 2);
  EXPECT_EQ(a->expert_ffn_dim, 32);
  EXPECT_EQ(a->ffn_dim, 0);
  EXPECT_EQ(ReadAs("qwen3moe", keys(8, 9)).status().message(),
            "qwen3moe.expert_used_count = 9: expected 1 to 8");
  EXPECT_EQ(ReadAs("qwen3moe", {}).status().code(), StatusCode::kNotFound);
  const auto refused = [&](std::function<void(GgufBuilder&)> more) {
    return ReadAs("qwen3moe",
                  [&](GgufBuilder& b) {
                    keys(8, 2)(b);
                    more(b);
                  })
        .status()
        .message();
  };
  EXPECT_EQ(refused([](GgufBuilder& b) { b.Bool("qwen3moe.expert_weights_norm", false); }),
            "qwen3moe.expert_weights_norm = false: only weights of experts that sum to 1 are "
            "supported");
  EXPECT_EQ(refused([](GgufBuilder& b) { b.F32("qwen3moe.expert_weights_scale", 2.5f); }),
            "scale of the experts' weights (qwen3moe.expert_weights_scale = 2.5) is not built for "
            "the architecture 'qwen3moe'");
  EXPECT_EQ(
      ReadAs("qwen3", [](GgufBuilder& b) { b.U32("qwen3.expert_count", 4); }).status().message(),
      "mixture of experts (qwen3.expert_count = 4) is not built for the architecture "
      "'qwen3'");
}

TEST(Architecture, LongRopeTakesTheFactorsOfTheContext) {
  const auto read = [](int64_t context) {
    std::string short_factors, long_factors;
    for (int i = 0; i < 6; ++i) {
      const float one = 1, four = 4;
      short_factors.append(reinterpret_cast<const char*>(&one), 4);
      long_factors.append(reinterpret_cast<const char*>(&four), 4);
    }
    GgufBuilder b;
    b.Text("general.architecture", "phi3")
        .U32("phi3.block_count", 1)
        .U32("phi3.context_length", 4096)
        .U32("phi3.embedding_length", 64)
        .U32("phi3.feed_forward_length", 96)
        .U32("phi3.attention.head_count", 4)
        .U32("phi3.rope.dimension_count", 12)
        .U32("phi3.rope.scaling.original_context_length", 1024)
        .F32("phi3.rope.scaling.attn_factor", 1.25f)
        .F32("phi3.attention.layer_norm_rms_epsilon", 1e-6f)
        .Tensor("token_embd.weight", GgmlType::kF32, {64, 2}, std::string(64 * 2 * 4, '\0'))
        .Tensor("rope_factors_long.weight", GgmlType::kF32, {6}, long_factors)
        .Tensor("rope_factors_short.weight", GgmlType::kF32, {6}, short_factors);
    const std::string bytes = b.Build();
    const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "t");
    return Architecture::FromGguf(*file, context);
  };
  EXPECT_EQ(read(0)->rope.inv_freq[0], 0.25f);  // as trained: 4096
  EXPECT_EQ(read(1024)->rope.inv_freq[0], 1.0f);
  EXPECT_EQ(read(1025)->rope.inv_freq[0], 0.25f);
  EXPECT_EQ(read(0)->rope.rope_dim(), 12);
  EXPECT_EQ(read(0)->rope.attention_scale, 1.25f);
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
