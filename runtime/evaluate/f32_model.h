// A model as it would be with keys and values of 32 bits: what its 16-bit cache costs is seen
// beside it. Plain loops; for measurements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/model.h"

namespace tq {

// The layers of `inner`, which must outlive this and is not to be run by others during a call; its
// attention reads keys and values as they were computed. The cache that is handed in is written as
// ever and read by nobody. One sequence at a time, from its beginning on: kUnsupported otherwise.
// The results do not depend on how tokens are cut into calls nor on threads. Holds 8 bytes for
// every value pair, and does about as much work as the quadratic attention of the text has
// products.
class F32Model final : public Model {
 public:
  F32Model(Model& inner, ThreadPool& pool);
  WeightInfo weights() const override { return inner_.weights(); }
  std::vector<std::vector<float>> KBias() const override { return inner_.KBias(); }
  Status Forward(KvCache& cache, std::span<const ForwardItem> items,
                 std::vector<float>* logits) override;

 private:
  // Of one KV head: blocks of kBlock tokens, [dim][kBlock] so that a query meets many keys at once.
  struct Head {
    std::vector<float> keys;    // [blocks][dim][kBlock]
    std::vector<float> values;  // [tokens][dim]
  };
  static constexpr int64_t kBlock = 64;

  void Keep(int layer, int count, const float* k, const float* v);
  void Attend(int layer, const AttentionParams& params, const AttentionItem& item);

  Model& inner_;
  ThreadPool& pool_;
  std::vector<Head> heads_;                 // [layers * KV heads]
  int64_t tokens_ = 0;                      // in them
  std::vector<std::vector<float>> scores_;  // [threads]
};

}  // namespace tq
