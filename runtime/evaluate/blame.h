// The job of tq eval blame: which layers and heads of a quantized cache cost the most. Each is
// given more bits in turn, as a pin on the command line would, and the KL that this recovers is
// measured.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/evaluate/divergence.h"
#include "runtime/evaluate/kld_run.h"

namespace tq {

// What is given more bits: K, V or both, of a layer or of one of its KV heads.
struct BlameSite {
  int layer = 0;
  int head = -1;  // -1: all
  bool k = true, v = true;
};

struct BlameOptions {
  Stream reference;      // the plain cache
  Stream candidate;      // the one to blame
  int restore_bits = 8;  // 8 or 16
  // Of the layers, the share that cost the most: there K, V and each head are tried apart.
  double worst_share = 0.25;
  std::vector<EvalText> texts;
  DivergenceOptions measure;
};

struct BlameEntry {
  BlameSite site;
  double kld = 0;               // with this site restored
  double recovered = 0;         // KL of the candidate - kld
  double recovered_stderr = 0;  // of the paired differences
  int64_t cost_bytes = 0;       // more at the length of the windows
  double cost_bits = 0;         // per value, mean over the cache's sealed blocks
  std::string pin;              // for --pin
};

// Of BlameResult::joint: the best of many figures is partly luck.
inline constexpr char kJointNote[] =
    "chosen by and measured on the same windows: expect somewhat less on other text";

struct BlameResult {
  std::string model_name, candidate_name;
  int restore_bits = 8;
  int num_layers = 0, num_kv_heads = 0;
  int64_t context_len = 0, windows = 0, tokens = 0;
  double kld = 0, kld_stderr = 0;  // of the candidate
  double bits_per_value = 0;
  int64_t bytes = 0;               // of its cache at that length
  std::vector<BlameEntry> layers;  // K and V together, most recovered first
  std::vector<BlameEntry> sides;   // K or V of the worst layers, most recovered first
  std::vector<BlameEntry> heads;   // heads of the worst layers, most recovered first
  // What recovers the most for its bytes, together, measured: layers or sides of layers until about
  // half the KL is gone, at most worst_share of the layers. See kJointNote.
  BlameEntry joint;
  bool informative = true;
  std::string note;
};

// kInvalidArgument: nothing of the candidate has fewer bits than restore_bits; the errors of
// MeasureDivergence.
Result<BlameResult> RunBlame(const BlameOptions& options);

// Standard errors that the largest of `sites` figures must reach to be no chance: so many that it
// is as rare for one of them all as two errors are for a single figure. 2 for one, 3.2 for 30.
double ClearErrors(size_t sites);

// `config` with a site restored as --pin would, and the pin. kInvalidArgument when the site has no
// quantized heads.
struct RestoredSite {
  CacheConfig config;
  std::string pin;
};
Result<RestoredSite> RestoreSite(const CacheConfig& config, const BlameSite& site, int bits);

nlohmann::ordered_json BlameJson(const BlameResult& result);
std::string BlameSection(const BlameResult& result);
// "layer 3", "K of layer 3, head 1".
std::string DescribeSite(const BlameSite& site);

}  // namespace tq
