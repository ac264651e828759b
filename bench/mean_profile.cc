// Makes profiles from a text: the means of K before RoPE, which centre it, and the mean queries,
// which choose anchors. One preset for all heads of each; no bit allocation.
//
//   mean_profile MODEL.gguf PRESET[,PRESET...] TEXT TOKENS FOLDER
//
// Writes FOLDER/PRESET.tqprofile for each.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <sstream>

#include "runtime/engine/session.h"
#include "turboquant/base/file.h"
#include "turboquant/calibrate/profile.h"
#include "turboquant/codec/decode.h"

namespace tq {
namespace {

// Sums over tokens of one kind of vector: [layers * heads][head_dim], turned back against RoPE.
class MeanBeforeRope {
 public:
  MeanBeforeRope(const Architecture& arch, int heads)
      : arch_(arch),
        heads_(heads),
        sums_(static_cast<size_t>(arch.num_layers) * heads,
              std::vector<double>(static_cast<size_t>(arch.head_dim), 0.0)),
        energy_(sums_.size(), 0.0) {}

  void Add(int layer, std::span<const int64_t> positions, const float* rows) {
    const int dim = arch_.head_dim, half = arch_.rope.rope_dim() / 2;
    for (size_t t = 0; t < positions.size(); ++t) {
      for (int i = 0; i < half; ++i) {
        const double angle = static_cast<double>(arch_.rope.inv_freq[static_cast<size_t>(i)]) *
                             static_cast<double>(positions[t]);
        const double c = std::cos(angle) / arch_.rope.attention_scale;
        const double s = std::sin(angle) / arch_.rope.attention_scale;
        for (int h = 0; h < heads_; ++h) {
          const float* x = rows + (t * heads_ + h) * dim;
          std::vector<double>& sum = sums_[static_cast<size_t>(layer) * heads_ + h];
          sum[i] += x[i] * c + x[i + half] * s;
          sum[i + half] += x[i + half] * c - x[i] * s;
        }
      }
      for (int h = 0; h < heads_; ++h) {
        const float* x = rows + (t * heads_ + h) * dim;
        const size_t at = static_cast<size_t>(layer) * heads_ + h;
        for (int i = 2 * half; i < dim; ++i) sums_[at][i] += x[i];
        for (int i = 0; i < dim; ++i) energy_[at] += static_cast<double>(x[i]) * x[i];
      }
    }
    if (layer == 0) tokens_ += positions.size();
  }
  std::vector<float> Mean(size_t head) const {
    std::vector<float> mean;
    for (const double s : sums_[head]) {
      mean.push_back(static_cast<float>(s / static_cast<double>(tokens_)));
    }
    return mean;
  }
  double MeanSquare(size_t head) const {
    return energy_[head] / static_cast<double>(tokens_) / arch_.head_dim;
  }

 private:
  const Architecture& arch_;
  int heads_;
  std::vector<std::vector<double>> sums_;
  std::vector<double> energy_;
  size_t tokens_ = 0;
};

// The keys of the session's only sequence, from its open rows.
void AddKeys(const KvCache& cache, int64_t num_tokens, MeanBeforeRope* keys) {
  const SeqId seq = 1;
  const int heads = cache.config().num_kv_heads, dim = cache.config().head_dim;
  std::vector<float> head_rows(static_cast<size_t>(kPageLen) * dim), rows(head_rows.size() * heads);
  for (int layer = 0; layer < cache.config().num_layers; ++layer) {
    for (int64_t b = 0; b * kPageLen < num_tokens; ++b) {
      for (int h = 0; h < heads; ++h) {
        const KvCache::HeadLayout& l = cache.layout(layer, h);
        DecodeOpenSide({Side::kK, dim, l.open.k_type,
                        cache.OpenSlot(seq, b) + l.open_offset + l.open.k_values, nullptr},
                       head_rows.data());
        for (int t = 0; t < kPageLen; ++t) {
          std::copy_n(&head_rows[static_cast<size_t>(t) * dim], dim,
                      &rows[(static_cast<size_t>(t) * heads + h) * dim]);
        }
      }
      std::vector<int64_t> positions(
          static_cast<size_t>(std::min<int64_t>(kPageLen, num_tokens - b * kPageLen)));
      std::iota(positions.begin(), positions.end(), b * kPageLen);
      keys->Add(layer, positions, rows.data());
    }
  }
}

Status Run(int argc, char** argv) {
  if (argc != 6) {
    return InvalidArgument("usage: mean_profile MODEL.gguf PRESET[,PRESET...] TEXT TOKENS FOLDER");
  }
  std::vector<HeadFormat> formats;
  std::stringstream list(argv[2]);
  for (std::string preset; std::getline(list, preset, ',');) {
    TQ_ASSIGN_OR_RETURN(formats.emplace_back(), ParsePreset(preset));
  }
  TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(argv[3]));
  const int64_t total = std::atoll(argv[4]);
  ThreadPool pool;
  TQ_ASSIGN_OR_RETURN(auto model, Model::Load(argv[1], pool));
  TQ_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::FromGguf(model->file()));
  const Architecture& arch = model->arch();
  if (arch.num_window_layers() > 0) {
    return Unsupported(argv[1], ": means of layers with a sliding window are not measured here");
  }
  std::vector<TokenId> tokens = tokenizer->Encode(text.substr(0, static_cast<size_t>(total) * 12));
  if (total < 1 || static_cast<int64_t>(tokens.size()) < total) {
    return InvalidArgument(argv[3], " gives ", tokens.size(), " tokens; ", argv[4],
                           " were asked for");
  }

  MeanBeforeRope keys(arch, arch.num_kv_heads), queries(arch, arch.num_q_heads);
  std::vector<int64_t> positions;
  model->set_attention_probe(
      [&](int layer, const KvCache&, const AttentionParams&, std::span<const AttentionItem> items) {
        for (const AttentionItem& item : items) {
          positions.resize(static_cast<size_t>(item.num_tokens));
          std::iota(positions.begin(), positions.end(), item.first_pos);
          queries.Add(layer, positions, item.q);
        }
      });
  const int64_t window = std::min<int64_t>(arch.context_len, 2048);
  for (int64_t from = 0; from < total; from += window) {
    const int64_t n = std::min(window, total - from);
    CacheConfig config = model->MakeCacheConfig();  // f16 everywhere
    config.recent_len = static_cast<int>(window);   // all rows stay open
    TQ_ASSIGN_OR_RETURN(auto session, Session::Create(*model, config, window));
    TQ_RETURN_IF_ERROR(session->Prefill(
        std::span(tokens).subspan(static_cast<size_t>(from), static_cast<size_t>(n))));
    AddKeys(session->cache(), n, &keys);
    std::fprintf(stderr, "%lld of %lld tokens\n", static_cast<long long>(from + n),
                 static_cast<long long>(total));
  }

  Profile profile;
  profile.model.name = arch.model_name;
  profile.model.architecture = arch.name;
  profile.model.structure_hash = model->StructureHash();
  profile.model.num_layers = arch.num_layers;
  profile.model.num_q_heads = arch.num_q_heads;
  profile.model.num_kv_heads = arch.num_kv_heads;
  profile.model.head_dim = arch.head_dim;
  const size_t heads = static_cast<size_t>(arch.num_layers) * arch.num_kv_heads;
  profile.tensors.resize(heads);
  const size_t group = static_cast<size_t>(arch.num_q_heads / arch.num_kv_heads);
  for (size_t h = 0; h < heads; ++h) {
    profile.k_means.push_back(keys.Mean(h));
    QueryStatistics& q = profile.tensors[h].queries;
    double square = 0;
    for (size_t g = 0; g < group; ++g) {
      q.means.push_back(queries.Mean(h * group + g));
      square += queries.MeanSquare(h * group + g);
    }
    q.rms = static_cast<float>(std::sqrt(square / static_cast<double>(group)));
  }
  for (const HeadFormat& format : formats) {
    HeadFormat centred = format;
    centred.k = WithCenter(centred.k, Center::kRopeMean);
    profile.formats.assign(heads, centred);
    TQ_RETURN_IF_ERROR(profile.Save(StrCat(argv[5], "/", PresetName(format), ".tqprofile")));
  }
  return OkStatus();
}

}  // namespace
}  // namespace tq

int main(int argc, char** argv) {
  const tq::Status status = tq::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "mean_profile: %s\n", status.message().c_str());
  return 2;
}
