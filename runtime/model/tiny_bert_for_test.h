// An encoder of sentences small enough for tests: random weights, 2 layers of 2 heads, dim 8.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/model/bert_encoder.h"
#include "turboquant/base/exact_bytes_for_test.h"
#include "turboquant/base/numeric.h"

namespace tq {

struct TinyBert {
  nlohmann::json config = {
      {"model_type", "bert"},    {"hidden_act", "gelu"},     {"hidden_size", 8},
      {"intermediate_size", 12}, {"vocab_size", 8},          {"max_position_embeddings", 6},
      {"num_hidden_layers", 2},  {"num_attention_heads", 2}, {"layer_norm_eps", 1e-12}};
  std::vector<SafetensorsSource> tensors;

  explicit TinyBert(int64_t words = 8, int64_t positions = 6) {
    config["vocab_size"] = words;
    config["max_position_embeddings"] = positions;
    Add("embeddings.word_embeddings.weight", {words, 8});
    Add("embeddings.position_embeddings.weight", {positions, 8});
    Add("embeddings.token_type_embeddings.weight", {2, 8});
    AddPair("embeddings.LayerNorm", {8});
    for (const std::string layer : {"encoder.layer.0.", "encoder.layer.1."}) {
      for (const char* part : {"attention.self.query", "attention.self.key", "attention.self.value",
                               "attention.output.dense"}) {
        AddPair(layer + part, {8, 8});
      }
      AddPair(layer + "attention.output.LayerNorm", {8});
      AddPair(layer + "intermediate.dense", {12, 8});
      AddPair(layer + "output.dense", {8, 12});
      AddPair(layer + "output.LayerNorm", {8});
    }
  }
  void AddPair(const std::string& name, const std::vector<int64_t>& shape) {
    Add(name + ".weight", shape);
    Add(name + ".bias", {shape[0]});
  }
  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    std::vector<float> values(static_cast<size_t>(n));
    for (float& x : values) x = static_cast<float>(SplitMix64(seed) >> 40) * 0x1p-23f - 1;
    tensors.push_back({name, shape, std::move(values)});
  }
  SafetensorsSource& Tensor(const std::string& name) {
    for (SafetensorsSource& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name;
    return tensors[0];
  }

  // The bytes live as long as this.
  Result<std::unique_ptr<BertEncoder>> Build(ThreadPool& pool) {
    const Result<std::string> file = SerializeSafetensors(tensors);
    EXPECT_TRUE(file.ok()) << file.status().message();
    bytes = std::make_unique<ExactBytes>(*file);
    Result<SafetensorsFile> weights = SafetensorsFile::Parse(bytes->span(), "tiny");
    EXPECT_TRUE(weights.ok()) << weights.status().message();
    return BertEncoder::Build(config.dump(), *std::move(weights), pool);
  }

  uint64_t seed = 3;
  std::unique_ptr<ExactBytes> bytes;
};

}  // namespace tq
