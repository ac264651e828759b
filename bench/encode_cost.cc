// What writing and sealing cost: microseconds a token for all layers of a model's shape, in prefill
// chunks, and the steps of decoding that seal a block beside those that do not. Appends only; one
// thread, so the figures compare with a forward pass on one thread.
//
//   encode_cost [LAYERS KV_HEADS HEAD_DIM] [--formats k4v4,k3v2]
//
// Prints a line per format.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>

#include "turboquant/base/isa.h"
#include "turboquant/cache/cache.h"

namespace tq {
namespace {

constexpr int kPrefill = 2048, kChunk = 128, kSteps = 640;

double Seconds(std::chrono::steady_clock::time_point from) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

Status Append(KvCache& cache, SeqId seq, int n, const std::vector<float>& rows, ThreadPool& pool) {
  TQ_RETURN_IF_ERROR(cache.BeginAppend(seq, n));
  for (int layer = 0; layer < cache.config().num_layers; ++layer) {
    TQ_RETURN_IF_ERROR(cache.AppendLayer(seq, layer, rows.data(), rows.data(), pool));
  }
  return cache.CommitAppend(seq);
}

Status Measure(const std::string& preset, int layers, int heads, int dim) {
  TQ_ASSIGN_OR_RETURN(const HeadFormat format, ParsePreset(preset));
  CacheConfig config;
  config.num_layers = layers;
  config.num_kv_heads = heads;
  config.head_dim = dim;
  config.formats.assign(static_cast<size_t>(layers) * heads, format);
  for (int i = 0; i < dim / 2; ++i) {
    config.rope.inv_freq.push_back(
        std::pow(10000.f, -2.f * static_cast<float>(i) / static_cast<float>(dim)));
  }
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  if (format.anchors > 0) {
    config.tensors.resize(config.formats.size());
    for (HeadTensors& t : config.tensors) {
      t.queries.means.assign(3, std::vector<float>(static_cast<size_t>(dim)));
      for (auto& mean : t.queries.means) {
        for (float& v : mean) v = normal(rng);
      }
    }
  }
  std::vector<float> rows(static_cast<size_t>(kChunk) * heads * dim);
  for (float& v : rows) v = normal(rng);
  TQ_ASSIGN_OR_RETURN(auto cache, KvCache::Create(config));
  ThreadPool pool(1);
  const SeqId seq = cache->NewSequence();
  const auto start = std::chrono::steady_clock::now();
  for (int at = 0; at < kPrefill; at += kChunk) {
    TQ_RETURN_IF_ERROR(Append(*cache, seq, kChunk, rows, pool));
  }
  const double prefill = Seconds(start) / kPrefill;
  std::vector<double> steps;
  for (int i = 0; i < kSteps; ++i) {
    const auto step = std::chrono::steady_clock::now();
    TQ_RETURN_IF_ERROR(Append(*cache, seq, 1, rows, pool));
    steps.push_back(Seconds(step));
  }
  std::sort(steps.begin(), steps.end());
  std::printf(
      "%-22s prefill %8.1f us a token   step median %8.1f us  99 %% %8.1f us  max %8.1f us\n",
      preset.c_str(), prefill * 1e6, steps[kSteps / 2] * 1e6, steps[kSteps * 99 / 100] * 1e6,
      steps.back() * 1e6);
  return OkStatus();
}

Status Run(int argc, char** argv) {
  int shape[3] = {30, 3, 64}, given = 0;
  std::string formats = "f16,k8v8,k4v4,k3v2,k3v2-anchor1,k3v2-trellis,k4v4-group32";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--formats") == 0 && i + 1 < argc) {
      formats = argv[++i];
    } else if (given < 3) {
      shape[given++] = std::atoi(argv[i]);
    }
  }
  TQ_RETURN_IF_ERROR(ApplyIsaFromEnvironment());
  std::stringstream list(formats);
  for (std::string preset; std::getline(list, preset, ',');) {
    TQ_RETURN_IF_ERROR(Measure(preset, shape[0], shape[1], shape[2]));
  }
  return OkStatus();
}

}  // namespace
}  // namespace tq

int main(int argc, char** argv) {
  const tq::Status status = tq::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "encode_cost: %s\n", status.message().c_str());
  return 2;
}
