// From what each format of each head costs to the formats of a whole model under a budget.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "turboquant/base/status.h"
#include "turboquant/codec/codec.h"

namespace tq {

// The formats that a side may have, from the fewest bits up: rungs.
struct FormatLadder {
  std::vector<Codec> k, v;
  int anchors = 0, anchor_bits = 4;  // of every head
  const std::vector<Codec>& of(Side side) const { return side == Side::kK ? k : v; }
  HeadFormat Format(int k_rung, int v_rung) const;
};
// The widths `bits` (ascending) with the other axes of `base`: trellis up to 4 bits, affine groups,
// anchors; K centred if `center`. `group_lens` (descending, kGroupHead first): each width once for
// each of them, where base has no groups and the code book allows it. Errors of ValidateFormat.
Result<FormatLadder> MakeLadder(const HeadFormat& base, const std::vector<int>& bits, bool center,
                                const std::vector<int>& group_lens = {kGroupHead});

// What every rung of every head's K and V is predicted to add to the objective. Layers with a
// sliding window keep their format and are not among the heads.
struct SiteCosts {
  int num_layers = 0, num_kv_heads = 0, head_dim = 0;
  std::vector<bool> fixed;  // [num_layers]: not chosen here
  // [num_layers * num_kv_heads][K, V][rungs]
  std::vector<std::array<std::vector<double>, 2>> costs;
};

// What has one width: K and V of a layer; K, or V, of a layer; K, or V, of a head.
enum class Granularity { kPair, kLayer, kHead };

struct ChoiceRequest {
  std::optional<double> max_bits = {};  // per value of the chosen layers, everything counted
  std::optional<double> max_cost = {};  // used when max_bits is empty
  Granularity granularity = Granularity::kLayer;
  double v_weight = 1;  // on the costs of V
  // [num_layers * num_kv_heads][K, V]: rungs below these are not allowed; empty: all are.
  std::vector<std::array<int, 2>> least_rungs = {};
};

struct ChosenFormats {
  std::vector<std::array<int, 2>> rungs;  // [num_layers * num_kv_heads]; 0 for fixed layers
  double bits = 0;                        // per value of the chosen layers
  double cost = 0;                        // sum of the costs as given, before weight
};

// The formats of least cost within max_bits, or of the fewest bits within max_cost.
// kInvalidArgument when neither is possible; the message has both numbers.
Result<ChosenFormats> ChooseFormats(const FormatLadder& ladder, const SiteCosts& costs,
                                    const ChoiceRequest& request);

// Bits per value of heads that all have this format.
double BitsOf(const FormatLadder& ladder, const SiteCosts& costs, const ChosenFormats& chosen);

}  // namespace tq
