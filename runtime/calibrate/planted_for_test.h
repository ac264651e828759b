// A small model whose sensitive places a test plants itself, and texts for it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/calibrate/calibrate.h"
#include "runtime/model/tiny_llama_for_test.h"

namespace tq::planted {

inline constexpr int kLayers = 4, kHeads = 2, kGroup = 2, kDim = 16, kHidden = 64, kVocab = 50;

// A llama of four layers whose matrices a test may change before it is loaded.
class Planted {
 public:
  Planted() : pool_(2) {
    tiny_.num_layers = kLayers;
    tiny_.bias = true;
    bytes_ = tiny_.Build();
    // Layers that add to the stream what trained ones do, little, and logits that leave a choice:
    // otherwise the smallest error changes everything that follows.
    for (int l = 0; l < kLayers; ++l) {
      ScaleAll(StrCat("blk.", l, ".attn_output.weight"), 0.2f);
      ScaleAll(StrCat("blk.", l, ".ffn_down.weight"), 0.1f);
      ScaleAll(StrCat("blk.", l, ".attn_q.weight"), 0.5f);
      ScaleAll(StrCat("blk.", l, ".attn_q.bias"), 0.5f);
    }
    ScaleAll("output_norm.weight", 0.2f);
  }
  // Multiplies columns [from, to) of a matrix of `columns`; all rows.
  void Scale(const std::string& name, float factor, int columns, int from, int to) {
    const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes_)), "tiny");
    const GgufTensor* t = file->FindTensor(name);
    ASSERT_NE(t, nullptr) << name;
    char* data = bytes_.data() + (reinterpret_cast<const char*>(t->data.data()) - bytes_.data());
    for (size_t i = 0; i < t->data.size() / 4; ++i) {
      const int column = static_cast<int>(i) % columns;
      if (column < from || column >= to) continue;
      float x;
      std::memcpy(&x, data + 4 * i, 4);
      x *= factor;
      std::memcpy(data + 4 * i, &x, 4);
    }
  }
  void ScaleAll(const std::string& name, float factor) { Scale(name, factor, 1, 0, 1); }
  LlamaModel& Load() {
    auto model = tiny_.Make(bytes_, pool_);
    TQ_CHECK(model.ok());
    model_ = std::move(*model);
    return *model_;
  }
  ThreadPool& pool() { return pool_; }

 private:
  TinyLlama tiny_;
  ThreadPool pool_;
  std::string bytes_;
  std::unique_ptr<LlamaModel> model_;
};

// Of tokens [first, first + kinds), each as likely as the others: nothing can be predicted.
inline std::vector<std::vector<TokenId>> SomeWindows(int count, uint64_t seed, int length = 420,
                                                     int first = 0, int kinds = kVocab) {
  std::vector<std::vector<TokenId>> windows(static_cast<size_t>(count));
  for (auto& w : windows) {
    for (int t = 0; t < length; ++t) {
      w.push_back(first + static_cast<TokenId>(SplitMix64(seed) % static_cast<uint64_t>(kinds)));
    }
  }
  return windows;
}

// A short window, so that short texts show something.
inline CalibrateOptions Options(Planted& planted) {
  CalibrateOptions o;
  o.base = *ParsePreset("k3v2");
  o.bits = {2, 3, 4, 8};
  o.context_len = 420;
  o.recent_len = 64;
  o.sink_len = 1;
  o.site_tokens = o.search_tokens = 840;
  o.held_out_tokens = 1260;
  o.pool = &planted.pool();
  return o;
}

}  // namespace tq::planted
