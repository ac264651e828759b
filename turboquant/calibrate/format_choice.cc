#include "turboquant/calibrate/format_choice.h"

#include <algorithm>
#include <limits>

#include "turboquant/calibrate/allocation.h"
#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

// Bytes of one side in a block; anchors, side info and padding are the same for all rungs.
size_t SideBytes(const Codec& codec, int head_dim) {
  return ValueBytes(codec.bits, head_dim) + ScaleBytes(codec, head_dim);
}

size_t HeadBytes(const HeadFormat& f, int head_dim) {
  return RecordLayout::For(f, head_dim).bytes + SideInfoBytes(f);
}

// What has one rung: K or V of one head or of all heads of a layer, or both of a layer.
struct Site {
  size_t first_head = 0, num_heads = 1;
  std::vector<int> sides;
  std::vector<int> rungs;  // of its choices
};

constexpr Side kSides[] = {Side::kK, Side::kV};

double Sum(const SiteCosts& costs, const Site& site, int rung, double v_weight = 1) {
  double sum = 0;
  for (const int side : site.sides) {
    double of_side = 0;
    for (size_t h = 0; h < site.num_heads; ++h) {
      of_side += costs.costs[site.first_head + h][side][static_cast<size_t>(rung)];
    }
    sum += of_side * (side == 1 ? v_weight : 1);
  }
  return sum;
}

std::vector<Site> MakeSites(const FormatLadder& ladder, const SiteCosts& costs,
                            const ChoiceRequest& request) {
  std::vector<Site> sites;
  const auto heads = static_cast<size_t>(costs.num_kv_heads);
  const size_t step = request.granularity == Granularity::kHead ? 1 : heads;
  std::vector<std::vector<int>> sides = {{0}, {1}};
  if (request.granularity == Granularity::kPair) sides = {{0, 1}};
  for (int layer = 0; layer < costs.num_layers; ++layer) {
    if (costs.fixed[static_cast<size_t>(layer)]) continue;
    for (size_t first = 0; first < heads; first += step) {
      for (const std::vector<int>& of : sides) {
        Site site{static_cast<size_t>(layer) * heads + first, step, of, {}};
        int least = 0, rungs = std::numeric_limits<int>::max();
        for (const int side : of) {
          for (size_t h = 0; h < step && !request.least_rungs.empty(); ++h) {
            least = std::max(least, request.least_rungs[site.first_head + h][side]);
          }
          rungs = std::min(rungs, static_cast<int>(ladder.of(kSides[side]).size()));
        }
        for (int r = std::min(least, rungs - 1); r < rungs; ++r) site.rungs.push_back(r);
        sites.push_back(std::move(site));
      }
    }
  }
  return sites;
}

}  // namespace

HeadFormat FormatLadder::Format(int k_rung, int v_rung) const {
  HeadFormat f;
  f.k = k[static_cast<size_t>(k_rung)];
  f.v = v[static_cast<size_t>(v_rung)];
  f.anchors = anchors;
  f.anchor_bits = anchor_bits;
  return f;
}

Result<FormatLadder> MakeLadder(const HeadFormat& base, const std::vector<int>& bits, bool center,
                                const std::vector<int>& group_lens) {
  if (bits.empty() || group_lens.empty()) {
    return InvalidArgument("a ladder of formats needs at least one width and group length");
  }
  FormatLadder ladder;
  ladder.anchors = base.anchors;
  ladder.anchor_bits = base.anchor_bits;
  for (const Side side : kSides) {
    const Codec& like = side == Side::kK ? base.k : base.v;
    std::vector<Codec>& rungs = side == Side::kK ? ladder.k : ladder.v;
    for (const int width : bits) {
      TQ_ASSIGN_OR_RETURN(Codec codec, DefaultCodec(width));
      if (like.codebook == Codebook::kTrellis && width <= 4) codec.codebook = Codebook::kTrellis;
      for (const int group_len : group_lens) {
        Codec c = codec;
        if (group_len != kGroupHead && (like.is_grouped() || c.codebook == Codebook::kTrellis)) {
          continue;
        }
        c.group_len = group_len;
        if (like.is_grouped()) c = WithGroups(c, like.group_len);
        if (center && side == Side::kK) c = WithCenter(c, Center::kRopeMean);
        rungs.push_back(c);
      }
    }
  }
  for (size_t r = 0; r < std::max(ladder.k.size(), ladder.v.size()); ++r) {
    TQ_RETURN_IF_ERROR(
        ValidateFormat(ladder.Format(static_cast<int>(std::min(r, ladder.k.size() - 1)),
                                     static_cast<int>(std::min(r, ladder.v.size() - 1)))));
  }
  return ladder;
}

double BitsOf(const FormatLadder& ladder, const SiteCosts& costs, const ChosenFormats& chosen) {
  size_t bytes = 0, heads = 0;
  for (size_t h = 0; h < chosen.rungs.size(); ++h) {
    if (costs.fixed[h / static_cast<size_t>(costs.num_kv_heads)]) continue;
    bytes += HeadBytes(ladder.Format(chosen.rungs[h][0], chosen.rungs[h][1]), costs.head_dim);
    ++heads;
  }
  const double values = 2.0 * kPageLen * costs.head_dim * static_cast<double>(heads);
  return heads == 0 ? 0 : 8.0 * static_cast<double>(bytes) / values;
}

Result<ChosenFormats> ChooseFormats(const FormatLadder& ladder, const SiteCosts& costs,
                                    const ChoiceRequest& request) {
  const std::vector<Site> sites = MakeSites(ladder, costs, request);
  const HeadFormat smallest = ladder.Format(0, 0);
  // What a head takes beside its two sides.
  const size_t beside = HeadBytes(smallest, costs.head_dim) -
                        SideBytes(smallest.k, costs.head_dim) -
                        SideBytes(smallest.v, costs.head_dim);
  const auto chosen_layers =
      static_cast<size_t>(std::count(costs.fixed.begin(), costs.fixed.end(), false));
  const size_t num_heads = chosen_layers * static_cast<size_t>(costs.num_kv_heads);
  const double values = 2.0 * kPageLen * costs.head_dim * static_cast<double>(num_heads);

  std::vector<AllocationSite> allocation;
  for (const Site& site : sites) {
    AllocationSite& a = allocation.emplace_back();
    for (const int rung : site.rungs) {
      size_t bytes = 0;
      for (const int side : site.sides) {
        bytes += site.num_heads * SideBytes(ladder.of(kSides[side])[rung], costs.head_dim);
      }
      a.choices.push_back({bytes, Sum(costs, site, rung, request.v_weight)});
    }
  }
  TQ_ASSIGN_OR_RETURN(const AllocationFrontier frontier,
                      AllocationFrontier::Create(std::move(allocation)));
  Result<Allocation> a = Allocation{};
  if (request.max_bits) {
    const double least =
        8.0 * static_cast<double>(frontier.min_bytes() + num_heads * beside) / values;
    if (*request.max_bits < least - 1e-9) {
      return InvalidArgument("a budget of ", *request.max_bits,
                             " bits per value; the smallest formats take ", least,
                             ": raise the budget, or use fewer anchors");
    }
    // The tolerance lets a budget be the bits of a preset as they are printed.
    const double bytes = (*request.max_bits + 1e-9) * values / 8;
    a = frontier.AtBytes(static_cast<size_t>(bytes) - num_heads * beside);
  } else {
    a = frontier.AtCost(request.max_cost.value_or(0));
  }
  if (!a.ok()) return a.status();

  ChosenFormats chosen;
  chosen.rungs.assign(costs.costs.size(), {0, 0});
  for (size_t s = 0; s < sites.size(); ++s) {
    const int rung = sites[s].rungs[static_cast<size_t>(a->choices[s])];
    for (size_t h = 0; h < sites[s].num_heads; ++h) {
      for (const int side : sites[s].sides) chosen.rungs[sites[s].first_head + h][side] = rung;
    }
    chosen.cost += Sum(costs, sites[s], rung);
  }
  chosen.bits = BitsOf(ladder, costs, chosen);
  return chosen;
}

}  // namespace tq
