// Makes a profile whose K is centred on its mean before RoPE, from a text: the means are read back
// from an f16 cache, turned against RoPE and averaged. One preset for all heads; no bit allocation.
//
//   mean_profile MODEL.gguf PRESET TEXT TOKENS OUT.tqprofile
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "runtime/engine/session.h"
#include "turboquant/base/file.h"
#include "turboquant/calibrate/profile.h"
#include "turboquant/codec/decode.h"

namespace tq {
namespace {

Status Run(int argc, char** argv) {
  if (argc != 6) {
    return InvalidArgument("usage: mean_profile MODEL.gguf PRESET TEXT TOKENS OUT.tqprofile");
  }
  TQ_ASSIGN_OR_RETURN(HeadFormat format, ParsePreset(argv[2]));
  TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(argv[3]));
  const int64_t total = std::atoll(argv[4]);
  ThreadPool pool;
  TQ_ASSIGN_OR_RETURN(auto model, Model::Load(argv[1], pool));
  TQ_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::FromGguf(model->file()));
  const Architecture& arch = model->arch();
  const int dim = arch.head_dim, half = arch.rope.rope_dim() / 2;
  std::vector<TokenId> tokens = tokenizer->Encode(text.substr(0, static_cast<size_t>(total) * 12));
  if (total < 1 || static_cast<int64_t>(tokens.size()) < total) {
    return InvalidArgument(argv[3], " gives ", tokens.size(), " tokens; ", argv[4],
                           " were asked for");
  }

  const size_t heads = static_cast<size_t>(arch.num_layers) * arch.num_kv_heads;
  std::vector<std::vector<double>> sums(heads, std::vector<double>(static_cast<size_t>(dim), 0.0));
  const int64_t window = std::min<int64_t>(arch.context_len, 2048);
  int64_t used = 0;
  std::vector<float> rows(static_cast<size_t>(kPageLen) * dim);
  for (int64_t from = 0; from < total; from += window) {
    const int64_t n = std::min(window, total - from);
    CacheConfig config = model->MakeCacheConfig();  // f16 everywhere
    config.recent_len = static_cast<int>(window);   // all rows stay open
    TQ_ASSIGN_OR_RETURN(auto session, Session::Create(*model, config, window));
    TQ_RETURN_IF_ERROR(session->Prefill(
        std::span(tokens).subspan(static_cast<size_t>(from), static_cast<size_t>(n))));
    const KvCache& cache = session->cache();
    const SeqId seq = 1;  // the session's only sequence
    for (size_t h = 0; h < heads; ++h) {
      const KvCache::HeadLayout& l = cache.layout(static_cast<int>(h) / arch.num_kv_heads,
                                                  static_cast<int>(h) % arch.num_kv_heads);
      for (int64_t b = 0; b * kPageLen < n; ++b) {
        DecodeOpenSide({Side::kK, dim, l.open.k_type,
                        cache.OpenSlot(seq, b) + l.open_offset + l.open.k_values, nullptr},
                       rows.data());
        for (int64_t t = 0; t < std::min<int64_t>(kPageLen, n - b * kPageLen); ++t) {
          const float* k = &rows[static_cast<size_t>(t) * dim];
          for (int i = 0; i < half; ++i) {
            const double angle =
                static_cast<double>(arch.rope.inv_freq[i]) * static_cast<double>(b * kPageLen + t);
            const double c = std::cos(angle) / arch.rope.attention_scale;
            const double s = std::sin(angle) / arch.rope.attention_scale;
            sums[h][i] += k[i] * c + k[i + half] * s;
            sums[h][i + half] += k[i + half] * c - k[i] * s;
          }
          for (int i = 2 * half; i < dim; ++i) sums[h][i] += k[i];
        }
      }
    }
    used += n;
    std::fprintf(stderr, "%lld of %lld tokens\n", static_cast<long long>(used),
                 static_cast<long long>(total));
  }

  Profile profile;
  profile.model.name = arch.model_name;
  profile.model.architecture = arch.name;
  profile.model.structure_hash = model->StructureHash();
  profile.model.num_layers = arch.num_layers;
  profile.model.num_q_heads = arch.num_q_heads;
  profile.model.num_kv_heads = arch.num_kv_heads;
  profile.model.head_dim = dim;
  format.k = WithCenter(format.k, Center::kRopeMean);
  profile.formats.assign(heads, format);
  for (const std::vector<double>& sum : sums) {
    std::vector<float> mean;
    for (const double s : sum) mean.push_back(static_cast<float>(s / static_cast<double>(used)));
    profile.k_means.push_back(std::move(mean));
  }
  return profile.Save(argv[5]);
}

}  // namespace
}  // namespace tq

int main(int argc, char** argv) {
  const tq::Status status = tq::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "mean_profile: %s\n", status.message().c_str());
  return 2;
}
