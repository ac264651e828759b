// A KV cache of one layer: append the keys and values of 1,000 tokens, attend with one query, and
// see how many bytes it took. The library never prints and never aborts: it returns a Status.
#include <cmath>
#include <cstdio>
#include <vector>

#include "turboquant/attention/attention.h"
#include "turboquant/cache/cache.h"
#include "turboquant/codec/codec.h"

namespace {

constexpr int kNumTokens = 1000;
constexpr int kNumKvHeads = 2;
constexpr int kNumQHeads = 4;
constexpr int kHeadDim = 64;

// Something to store: any floats will do.
std::vector<float> Waves(size_t count, float step) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = std::sin(step * static_cast<float>(i));
  return values;
}

tq::Status Run() {
  TQ_ASSIGN_OR_RETURN(const tq::HeadFormat format, tq::ParsePreset("k3v2"));
  tq::CacheConfig config;
  config.num_layers = 1;
  config.num_kv_heads = kNumKvHeads;
  config.head_dim = kHeadDim;
  config.formats.assign(kNumKvHeads, format);  // one for each layer and KV head
  TQ_ASSIGN_OR_RETURN(const auto cache, tq::KvCache::Create(config));

  tq::ThreadPool pool;
  const tq::SeqId seq = cache->NewSequence();
  const std::vector<float> k = Waves(kNumTokens * kNumKvHeads * kHeadDim, 0.37f);
  const std::vector<float> v = Waves(kNumTokens * kNumKvHeads * kHeadDim, 0.11f);
  TQ_RETURN_IF_ERROR(cache->BeginAppend(seq, kNumTokens));
  TQ_RETURN_IF_ERROR(cache->AppendLayer(seq, /*layer=*/0, k.data(), v.data(), pool));
  TQ_RETURN_IF_ERROR(cache->CommitAppend(seq));

  const std::vector<float> q = Waves(kNumQHeads * kHeadDim, 0.05f);
  std::vector<float> out(q.size());
  const tq::AttentionItem item{seq, kNumTokens - 1, /*num_tokens=*/1, q.data(), out.data()};
  TQ_RETURN_IF_ERROR(
      tq::Attend(*cache, /*layer=*/0, {.num_q_heads = kNumQHeads}, {&item, 1}, pool));

  std::printf("first outputs: %.3f %.3f %.3f\n", out[0], out[1], out[2]);
  std::printf("K3V2 at %d tokens: %zu bytes, FP16 %zu bytes; sealed blocks: %.3f bits per value\n",
              kNumTokens, cache->Bytes().total(), cache->F16Bytes(), cache->BitsPerValue());
  return tq::OkStatus();
}

}  // namespace

int main() {
  const tq::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
