#include "runtime/model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "runtime/model/tiny_llama_for_test.h"
#include "turboquant/base/file.h"
#include "turboquant/base/safetensors.h"

namespace tq {
namespace {

using Floats = std::vector<double>;

// y[out] = W[out][in] x (+ bias).
Floats Times(const std::vector<float>& w, const Floats& x, const std::vector<float>* bias) {
  Floats y(w.size() / x.size());
  for (size_t o = 0; o < y.size(); ++o) {
    if (bias != nullptr) y[o] = (*bias)[o];
    for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
  }
  return y;
}

Floats Norm(const Floats& x, const std::vector<float>& w) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  Floats y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] / std::sqrt(sum / static_cast<double>(x.size()) + 1e-5) * w[i];
  }
  return y;
}

void Rotate(Floats& x, int head_dim, int position, double base) {
  const int half = head_dim / 2;
  for (size_t h = 0; h < x.size(); h += static_cast<size_t>(head_dim)) {
    for (int i = 0; i < half; ++i) {
      const double angle = position * std::pow(base, -2.0 * i / head_dim);
      double& a = x[h + static_cast<size_t>(i)];
      double& b = x[h + static_cast<size_t>(i + half)];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + a * std::sin(angle);
      a = turned;
    }
  }
}

// The llama architecture in plain loops of doubles: logits of the last token.
Floats PlainForward(const TinyLlama& m, const std::vector<int32_t>& tokens) {
  const auto w = [&](const std::string& name) -> const std::vector<float>& {
    return m.floats.at(name);
  };
  const auto bias = [&](const std::string& name) {
    const auto it = m.floats.find(name);
    return it == m.floats.end() ? nullptr : &it->second;
  };
  const size_t n = tokens.size();
  std::vector<Floats> x(n);
  for (size_t t = 0; t < n; ++t) {
    const auto row = w("token_embd.weight").begin() + tokens[t] * m.hidden;
    x[t].assign(row, row + m.hidden);
  }
  for (int l = 0; l < m.num_layers; ++l) {
    const std::string blk = "blk." + std::to_string(l) + ".";
    std::vector<Floats> q(n), k(n), v(n);
    for (size_t t = 0; t < n; ++t) {
      const Floats h = Norm(x[t], w(blk + "attn_norm.weight"));
      q[t] = Times(w(blk + "attn_q.weight"), h, bias(blk + "attn_q.bias"));
      k[t] = Times(w(blk + "attn_k.weight"), h, bias(blk + "attn_k.bias"));
      v[t] = Times(w(blk + "attn_v.weight"), h, bias(blk + "attn_v.bias"));
      Rotate(q[t], m.head_dim, static_cast<int>(t), m.rope_base);
      Rotate(k[t], m.head_dim, static_cast<int>(t), m.rope_base);
    }
    for (size_t t = 0; t < n; ++t) {
      Floats attended(q[t].size());
      for (int head = 0; head < m.q_heads; ++head) {
        const int kv = head / (m.q_heads / m.kv_heads);
        Floats p(t + 1);
        double sum = 0;
        for (size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (int i = 0; i < m.head_dim; ++i) {
            score += q[t][head * m.head_dim + i] * k[s][kv * m.head_dim + i];
          }
          sum += p[s] = std::exp(score / std::sqrt(m.head_dim));
        }
        for (size_t s = 0; s <= t; ++s) {
          for (int i = 0; i < m.head_dim; ++i) {
            attended[head * m.head_dim + i] += p[s] / sum * v[s][kv * m.head_dim + i];
          }
        }
      }
      const Floats o = Times(w(blk + "attn_output.weight"), attended, nullptr);
      for (size_t i = 0; i < o.size(); ++i) x[t][i] += o[i];
      const Floats h = Norm(x[t], w(blk + "ffn_norm.weight"));
      Floats gate = Times(w(blk + "ffn_gate.weight"), h, nullptr);
      const Floats up = Times(w(blk + "ffn_up.weight"), h, nullptr);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      const Floats down = Times(w(blk + "ffn_down.weight"), gate, nullptr);
      for (size_t i = 0; i < down.size(); ++i) x[t][i] += down[i];
    }
  }
  return Times(w(m.tied ? "token_embd.weight" : "output.weight"),
               Norm(x[n - 1], w("output_norm.weight")), nullptr);
}

std::vector<int32_t> SomeTokens(size_t n, uint64_t seed = 5) {
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(SplitMix64(seed) % 50);
  return tokens;
}

CacheConfig Config(const Model& model, const std::string& preset) {
  CacheConfig config = model.MakeCacheConfig();
  const auto format = ParsePreset(preset);
  TQ_CHECK(format.ok());
  for (HeadFormat& f : config.formats) f = *format;
  return config;
}

std::unique_ptr<KvCache> NewCache(const CacheConfig& config) {
  auto cache = KvCache::Create(config);
  TQ_CHECK(cache.ok());
  return std::move(*cache);
}

// Logits of all tokens, cut into calls of `chunk`.
std::vector<float> AllLogits(Model& model, const std::string& preset,
                             const std::vector<int32_t>& tokens, size_t chunk) {
  const auto cache = NewCache(Config(model, preset));
  const SeqId seq = cache->NewSequence();
  std::vector<float> all, logits;
  for (size_t done = 0; done < tokens.size(); done += chunk) {
    const size_t n = std::min(chunk, tokens.size() - done);
    const ForwardItem item = {seq, {tokens.data() + done, n}, true};
    EXPECT_TRUE(model.Forward(*cache, {&item, 1}, &logits).ok());
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

// Every layer: the stored stream leads to the same logits, over a cache that quantizes that layer.
TEST(Model, APassFromALayerEqualsTheWholePass) {
  TinyLlama tiny;
  tiny.num_layers = 3;
  const std::string bytes = tiny.Build();
  ThreadPool pool(2);
  const auto model = tiny.Make(bytes, pool);
  ASSERT_TRUE(model.ok());
  const std::vector<int32_t> tokens = SomeTokens(600);
  for (int layer = 0; layer < tiny.num_layers; ++layer) {
    CacheConfig config = (*model)->MakeCacheConfig();
    for (int h = 0; h < tiny.kv_heads; ++h) {
      config.formats[static_cast<size_t>(layer) * tiny.kv_heads + h] = *ParsePreset("k2v2");
    }
    const auto whole = NewCache(config), part = NewCache(config);
    const SeqId whole_seq = whole->NewSequence(), part_seq = part->NewSequence();
    std::vector<float> hidden, expected, logits;
    (*model)->set_layer_probe([&](int l, std::span<const float> x) {
      if (l == layer) hidden.assign(x.begin(), x.end());
    });
    for (size_t from = 0; from < tokens.size(); from += 200) {
      const ForwardItem item = {whole_seq, {tokens.data() + from, 200}, true};
      ASSERT_TRUE((*model)->Forward(*whole, {&item, 1}, &expected).ok());
      ForwardItem again = item;
      again.seq = part_seq;
      ASSERT_TRUE((*model)->ForwardFrom(layer, std::vector(hidden), *part, again, &logits).ok());
      EXPECT_EQ(logits, expected) << "layer " << layer << ", tokens from " << from;
    }
  }
  (*model)->set_layer_probe({});
  const auto cache = NewCache((*model)->MakeCacheConfig());
  const ForwardItem item = {cache->NewSequence(), {tokens.data(), 2}, true};
  std::vector<float> logits;
  const Status bad = (*model)->ForwardFrom(3, std::vector<float>(128), *cache, item, &logits);
  EXPECT_EQ(bad.message(), "a pass from layer 3 of 3 with 128 values; 2 tokens have 128");
}

TEST(Model, LogitsAreThoseOfPlainLoops) {
  for (const bool bias : {false, true}) {
    for (const bool tied : {false, true}) {
      for (const int head_dim : {16, 24}) {
        for (const GgmlType type : {GgmlType::kF32, GgmlType::kQ4_1}) {
          TinyLlama tiny;
          tiny.bias = bias;
          tiny.tied = tied;
          tiny.type = type;
          tiny.head_dim = head_dim;
          if (head_dim == 24) tiny.kv_heads = 1;
          const std::string bytes = tiny.Build();
          ThreadPool pool(2);
          const auto model = tiny.Make(bytes, pool);
          ASSERT_TRUE(model.ok()) << model.status().ToString();
          const std::vector<int32_t> tokens = SomeTokens(9);
          const Floats want = PlainForward(tiny, tokens);
          const std::vector<float> got = AllLogits(**model, "f16", tokens, 9);
          ASSERT_EQ(got.size(), 9u * 50);
          double max = 0;
          for (const double v : want) max = std::max(max, std::abs(v));
          for (size_t i = 0; i < 50; ++i) {
            // K and V are rounded to 11 bits.
            EXPECT_NEAR(got[8 * 50 + i], want[i], 4e-3 * max)
                << "bias " << bias << " tied " << tied;
          }
        }
      }
    }
  }
}

TEST(Model, ChunksAndThreadsDoNotChangeABit) {
  TinyLlama tiny;
  tiny.type = GgmlType::kQ4_1;
  const std::string bytes = tiny.Build();
  const std::vector<int32_t> tokens = SomeTokens(500);
  for (const char* preset : {"f16", "k3v2"}) {
    std::vector<float> want;
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      const auto model = tiny.Make(bytes, pool);
      ASSERT_TRUE(model.ok());
      for (const size_t chunk : {500, 128, 64, 37, 1}) {
        const std::vector<float> got = AllLogits(**model, preset, tokens, chunk);
        if (want.empty()) want = got;
        ASSERT_TRUE(got == want) << preset << ", " << threads << " threads, chunks of " << chunk;
      }
    }
  }
}

TEST(Model, NeighboursInABatchDoNotChangeABit) {
  TinyLlama tiny;
  tiny.type = GgmlType::kQ4_1;
  const std::string bytes = tiny.Build();
  ThreadPool pool(2);
  const auto model = tiny.Make(bytes, pool);
  ASSERT_TRUE(model.ok());
  const std::vector<std::vector<int32_t>> prompts = {SomeTokens(70, 1), SomeTokens(3, 2),
                                                     SomeTokens(129, 3)};
  const auto cache = NewCache(Config(**model, "k4v4"));
  std::vector<ForwardItem> items;
  for (const auto& prompt : prompts) items.push_back({cache->NewSequence(), prompt, true});
  std::vector<float> together, step;
  ASSERT_TRUE((*model)->Forward(*cache, items, &together).ok());
  // A step of one token each, of which only the last row is asked for.
  const int32_t next[] = {7, 8, 9};
  for (size_t i = 0; i < 3; ++i) items[i] = {items[i].seq, {&next[i], 1}, false};
  ASSERT_TRUE((*model)->Forward(*cache, items, &step).ok());
  ASSERT_EQ(step.size(), 3u * 50);
  auto row = together.begin();
  for (size_t i = 0; i < 3; ++i) {
    std::vector<int32_t> alone = prompts[i];
    alone.push_back(next[i]);
    const std::vector<float> want = AllLogits(**model, "k4v4", alone, alone.size());
    const auto n = static_cast<std::ptrdiff_t>(prompts[i].size()) * 50;
    EXPECT_TRUE(std::equal(row, row + n, want.begin())) << i;
    EXPECT_TRUE(std::equal(want.end() - 50, want.end(), step.begin() + i * 50)) << i;
    row += n;
  }
}

class ForwardErrors : public testing::Test {
 protected:
  void SetUp() override {
    bytes_ = tiny_.Build();
    auto model = tiny_.Make(bytes_, pool_);
    ASSERT_TRUE(model.ok());
    model_ = std::move(*model);
    cache_ = NewCache(Config(*model_, "f16"));
    a_ = cache_->NewSequence();
    b_ = cache_->NewSequence();
  }
  void ExpectError(std::vector<ForwardItem> items, StatusCode code, const std::string& message) {
    const Status s = model_->Forward(*cache_, items, &logits_);
    EXPECT_EQ(s.code(), code) << s.ToString();
    EXPECT_EQ(s.message(), message);
    EXPECT_EQ(*cache_->Length(a_), 0);
    EXPECT_EQ(*cache_->Length(b_), 0);
  }
  TinyLlama tiny_;
  std::string bytes_;
  ThreadPool pool_{1};
  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<KvCache> cache_;
  SeqId a_ = 0, b_ = 0;
  std::vector<float> logits_;
  std::vector<int32_t> good_ = {1, 2, 3}, low_ = {1, -1}, high_ = {1, 2, 50};
};

TEST_F(ForwardErrors, NameWhatIsWrongAndChangeNothing) {
  ExpectError({}, StatusCode::kInvalidArgument, "a forward pass over no items");
  ExpectError({{a_, good_}, {b_, {}}}, StatusCode::kInvalidArgument,
              "item 1 of the forward pass has no tokens");
  ExpectError({{a_, good_}, {b_, low_}}, StatusCode::kInvalidArgument,
              "token -1 at position 1: the vocabulary has 50");
  ExpectError({{a_, high_}}, StatusCode::kInvalidArgument,
              "token 50 at position 2: the vocabulary has 50");
  ExpectError({{a_, good_}, {b_, good_}, {a_, good_}}, StatusCode::kInvalidArgument,
              StrCat("sequence ", a_, " appears twice in one forward pass: items 0 and 2"));
  const std::vector<int32_t> long_prompt(8193, 1);
  ExpectError({{a_, long_prompt}}, StatusCode::kInvalidArgument,
              "a forward pass over more than 8192 tokens (8193): cut it into several calls");
  const ForwardItem unknown = {a_ + 1000, good_};
  EXPECT_FALSE(model_->Forward(*cache_, {&unknown, 1}, &logits_).ok());
}

TEST_F(ForwardErrors, ACacheOfAnotherShape) {
  CacheConfig config = Config(*model_, "f16");
  config.num_layers = 1;
  config.formats.resize(2);
  const auto cache = NewCache(config);
  const ForwardItem item = {cache->NewSequence(), good_};
  const Status s = model_->Forward(*cache, {&item, 1}, &logits_);
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(s.message(), "the cache has 1 layers of 2 KV heads of 16; the model has 2 of 2 of 16");
}

TEST_F(ForwardErrors, WhenTheSecondItemDoesNotFitTheFirstIsUndone) {
  CacheConfig config = Config(*model_, "f16");
  const auto whole = NewCache(config);
  const ForwardItem one = {whole->NewSequence(), good_};
  ASSERT_TRUE(model_->Forward(*whole, {&one, 1}, &logits_).ok());
  const std::vector<float> want = logits_;
  config.max_bytes = whole->Bytes().total() * 3 / 2;  // one block fits, two do not
  cache_ = NewCache(config);
  a_ = cache_->NewSequence();
  b_ = cache_->NewSequence();
  const ForwardItem both[] = {{a_, good_}, {b_, good_}};
  const Status s = model_->Forward(*cache_, both, &logits_);
  EXPECT_EQ(s.code(), StatusCode::kResourceExhausted) << s.ToString();
  EXPECT_EQ(*cache_->Length(a_), 0);
  EXPECT_EQ(*cache_->Length(b_), 0);
  const ForwardItem first = {a_, good_};
  ASSERT_TRUE(model_->Forward(*cache_, {&first, 1}, &logits_).ok());
  EXPECT_EQ(logits_, want);
}

TEST(ModelLoad, NamesTheTensorThatIsWrong) {
  ThreadPool pool(1);
  const auto error = [&](TinyLlama tiny) {
    const std::string bytes = tiny.Build();
    return tiny.Make(bytes, pool).status();
  };
  TinyLlama tiny;
  tiny.skip = "blk.1.ffn_up.weight";
  EXPECT_EQ(error(tiny).message(), "tensor 'blk.1.ffn_up.weight' is missing; expected [64, 96]");

  tiny.extra = [](GgufBuilder& b) {
    b.Tensor("blk.1.ffn_up.weight", GgmlType::kF32, {96, 64}, std::string(96 * 64 * 4, '\0'));
  };
  EXPECT_EQ(error(tiny).message(), "tensor 'blk.1.ffn_up.weight' is [96, 64]; expected [64, 96]");

  tiny = {};
  tiny.extra = [](GgufBuilder& b) {
    b.Tensor("blk.0.attn_q_norm.weight", GgmlType::kF32, {16}, std::string(64, '\0'));
  };
  Status s = error(tiny);
  EXPECT_EQ(s.code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      s.message(),
      "tensor 'blk.0.attn_q_norm.weight' [16] has no place in the llama architecture as built "
      "here");

  tiny = {};
  tiny.skip = "output_norm.weight";
  tiny.extra = [](GgufBuilder& b) {
    b.Tensor("output_norm.weight", static_cast<GgmlType>(20), {64}, std::string(36, '\0'));
  };
  s = error(tiny);
  EXPECT_EQ(s.code(), StatusCode::kUnsupported);
  EXPECT_EQ(s.message(),
            "tensor 'output_norm.weight': weights of type IQ4_NL are not supported; supported: " +
                WeightTypeNames() +
                "; 'tq quantize' makes a file of these types from the model's 16-bit weights");

  tiny.extra = [](GgufBuilder& b) {
    b.Tensor("output_norm.weight", GgmlType::kF32, {64}, std::string(256, '\xff'));
  };
  s = error(tiny);
  EXPECT_EQ(s.code(), StatusCode::kDataLoss);
  EXPECT_EQ(s.message(), "tensor 'output_norm.weight': row 0 of 1 has a value that is not finite");
}

TEST(ModelLoad, CanBeCancelled) {
  ThreadPool pool(1);
  TinyLlama tiny;
  const std::string bytes = tiny.Build();
  const Status s = tiny.Make(bytes, pool,
                             [](size_t done, size_t total, const std::string&) {
                               EXPECT_LE(done, total);
                               return done < 3;
                             })
                       .status();
  EXPECT_EQ(s.code(), StatusCode::kCancelled);
  EXPECT_EQ(s.message(), "loading was cancelled at tensor 'blk.0.attn_norm.weight'");
}

TEST(ModelLoad, AFileThatIsNotThere) {
  ThreadPool pool(1);
  EXPECT_EQ(Model::Load("/nonexistent/model.gguf", pool).status().code(), StatusCode::kNotFound);
}

// The same weights as a folder: GGUF's names back to those of the checkpoint, rows as they are
// there.
void WriteFolder(const TinyLlama& tiny, const std::string& path) {
  const std::map<std::string, std::string> names = {
      {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"},
      {"attn_norm", "input_layernorm"},     {"ffn_norm", "post_attention_layernorm"},
      {"attn_q", "self_attn.q_proj"},       {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},       {"attn_output", "self_attn.o_proj"},
      {"ffn_gate", "mlp.gate_proj"},        {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"}};
  std::vector<SafetensorsSource> tensors;
  for (const auto& [name, values] : tiny.floats) {
    const size_t end = name.rfind('.'), dot = name.rfind('.', end - 1);
    const size_t begin = dot == std::string::npos ? 0 : dot + 1;
    std::string hf = names.at(name.substr(begin, end - begin)) + name.substr(end);
    if (begin > 0) hf = "model.layers." + name.substr(4, begin - 4) + hf;
    const bool is_vector = name.find("norm") != std::string::npos || name.ends_with(".bias");
    const auto size = static_cast<int64_t>(values.size());
    const int64_t in = name.find("attn_output") != std::string::npos
                           ? int64_t{tiny.q_heads} * tiny.head_dim
                       : name.find("ffn_down") != std::string::npos ? tiny.ffn
                                                                    : tiny.hidden;
    std::vector<int64_t> shape = {size};
    if (!is_vector) shape = {size / in, in};
    tensors.push_back({hf, shape, values});
  }
  std::filesystem::create_directory(path);
  ASSERT_TRUE(WriteSafetensors(path + "/model.safetensors", tensors).ok());
  const std::string config =
      StrCat(R"({"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,)",
             R"("rope_theta": 10000.0, "num_hidden_layers": )", tiny.num_layers,
             R"(, "hidden_size": )", tiny.hidden, R"(, "intermediate_size": )", tiny.ffn,
             R"(, "num_attention_heads": )", tiny.q_heads, R"(, "num_key_value_heads": )",
             tiny.kv_heads, R"(, "vocab_size": )", tiny.vocab, "}");
  ASSERT_TRUE(WriteFileAtomic(path + "/config.json", config).ok());
}

TEST(ModelLoad, AFolderGivesTheBitsOfItsGgufFile) {
  ThreadPool pool(2);
  TinyLlama tiny;
  tiny.bias = true;
  const std::string bytes = tiny.Build(), path = testing::TempDir() + "/tiny_folder";
  WriteFolder(tiny, path);
  const auto gguf = tiny.Make(bytes, pool);
  const auto folder = Model::Load(path, pool);
  ASSERT_TRUE(gguf.ok());
  ASSERT_TRUE(folder.ok()) << folder.status().ToString();
  const std::vector<int32_t> tokens = SomeTokens(9);
  EXPECT_EQ(AllLogits(**folder, "f16", tokens, 9), AllLogits(**gguf, "f16", tokens, 9));
  EXPECT_EQ((*folder)->KBias(), (*gguf)->KBias());
}

TEST(Model, KBiasIsInHuggingFaceOrderAndBecomesTheCentre) {
  ThreadPool pool(1);
  TinyLlama tiny;
  tiny.bias = true;
  const std::string bytes = tiny.Build();
  const auto model = tiny.Make(bytes, pool);
  ASSERT_TRUE(model.ok());
  const auto bias = (*model)->KBias();
  ASSERT_EQ(bias.size(), 4u);
  for (size_t l = 0; l < 2; ++l) {
    const auto& want = tiny.floats.at("blk." + std::to_string(l) + ".attn_k.bias");
    for (size_t h = 0; h < 2; ++h) {
      EXPECT_EQ(bias[l * 2 + h],
                std::vector<float>(want.begin() + h * 16, want.begin() + (h + 1) * 16));
    }
  }
  const CacheConfig config = (*model)->MakeCacheConfig();
  ASSERT_EQ(config.centers.size(), 4u);
  EXPECT_EQ(config.centers[0].pairs.size(), 8u);
  EXPECT_TRUE(config.Validate().ok()) << config.Validate().ToString();
}

TEST(Model, StructureHashTellsStructuresApartButNotWeights) {
  ThreadPool pool(1);
  const auto hash = [&](TinyLlama tiny) {
    const std::string bytes = tiny.Build();
    const auto model = tiny.Make(bytes, pool);
    EXPECT_TRUE(model.ok());
    return (*model)->StructureHash();
  };
  const uint64_t base = hash({});
  TinyLlama other;
  other.seed = 99;
  other.type = GgmlType::kQ4_1;
  EXPECT_EQ(hash(other), base);
  other = {};
  other.rope_base = 20000;
  EXPECT_NE(hash(other), base);
  other = {};
  other.first_token = "<bos>";
  EXPECT_NE(hash(other), base);
  other = {};
  other.ffn = 128;
  EXPECT_NE(hash(other), base);
}

TEST(Model, ContextDecidesTheHashOfACacheAndNotOfAProfile) {
  ThreadPool pool(1);
  const std::string folder = TQ_SOURCE_DIR "/tests/golden/architectures/";
  const auto load = [&](const std::string& name, int64_t context) {
    auto model = Model::Load(folder + name, pool, {}, context);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    return std::move(*model);
  };
  // Its short factors are for contexts up to 64.
  const auto trained = load("phi3.gguf", 0), near = load("phi3.gguf", 60);
  ASSERT_NE(trained->arch().rope.inv_freq, near->arch().rope.inv_freq);
  EXPECT_EQ(trained->StructureHash(), near->StructureHash());
  EXPECT_NE(trained->CacheHash(), near->CacheHash());
  EXPECT_TRUE(trained->IsCacheHashOfAnotherContext(near->CacheHash()));
  EXPECT_TRUE(near->IsCacheHashOfAnotherContext(trained->CacheHash()));
  EXPECT_FALSE(near->IsCacheHashOfAnotherContext(near->CacheHash()));
  EXPECT_FALSE(near->IsCacheHashOfAnotherContext(0));
  const auto other = load("llama.gguf", 0);
  EXPECT_EQ(other->StructureHash(), other->CacheHash());
  EXPECT_FALSE(near->IsCacheHashOfAnotherContext(other->CacheHash()));
}

// Both sets of factors are part of the structure, whichever is in use.
TEST(Model, StructureHashCoversTheFactorsThatAreNotInUse) {
  ThreadPool pool(1);
  const auto hash = [&](float short_factor, float long_factor) {
    TinyLlama tiny;
    tiny.extra = [=](GgufBuilder& b) {
      b.U32("llama.rope.scaling.original_context_length", 1024);
      for (const auto& [name, factor] : {std::pair{"short", short_factor}, {"long", long_factor}}) {
        const std::vector<float> factors(8, factor);
        b.Tensor(StrCat("rope_factors_", name, ".weight"), GgmlType::kF32, {8},
                 std::string(reinterpret_cast<const char*>(factors.data()), 8 * sizeof(float)));
      }
    };
    const std::string bytes = tiny.Build();
    const auto model = tiny.Make(bytes, pool);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    return (*model)->StructureHash();
  };
  const uint64_t base = hash(1, 4);
  EXPECT_EQ(hash(1, 4), base);
  EXPECT_NE(hash(2, 4), base);
  EXPECT_NE(hash(1, 5), base);
}

TEST(Model, WeightsAreCountedOnce) {
  ThreadPool pool(1);
  TinyLlama tiny;
  tiny.type = GgmlType::kQ4_1;
  const std::string bytes = tiny.Build();
  const auto model = tiny.Make(bytes, pool);
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->weights().types, "Q4_1 (14), F32 (6)");
  EXPECT_LT((*model)->weights().bytes, bytes.size() * 11 / 10);
}

// Top logits of a forward pass in numpy over the dequantized weights of this file, at the last of
// the 19 tokens of "The capital of France is Paris. The capital of Germany is Berlin. The capital
// of Italy is".
TEST(RealModel, TopLogitsOfAKnownPrompt) {
  const std::string path = TQ_DATA_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!FileExists(path)) GTEST_SKIP() << path << " is not there";
  ThreadPool pool;
  const auto model = Model::Load(path, pool);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ((*model)->weights().types, "Q4_1 (210), F32 (61), Q8_0 (1)");
  const auto cache = NewCache((*model)->MakeCacheConfig());
  const std::vector<int32_t> tokens = {504,  3575, 282,   4649, 314, 7042, 30,  378,  3575, 282,
                                       4521, 314,  11452, 30,   378, 3575, 282, 7158, 314};
  const ForwardItem item = {cache->NewSequence(), tokens};
  std::vector<float> logits;
  ASSERT_TRUE((*model)->Forward(*cache, {&item, 1}, &logits).ok());
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + 5, order.end(),
                    [&](int a, int b) { return logits[a] > logits[b]; });
  const int want_ids[] = {7268, 7158, 19997, 29526, 28676};
  const double want_logits[] = {14.998, 12.626, 12.182, 11.069, 10.861};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(order[i], want_ids[i]);
    EXPECT_NEAR(logits[order[i]], want_logits[i], 0.05);
  }
}

}  // namespace
}  // namespace tq
