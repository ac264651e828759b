// Time by the roofline: bytes over bandwidth or operations over their peak, whichever is more.
#include <algorithm>
#include <cmath>

#include "turboquant/plan/plan.h"

namespace tq {
namespace {

// Share of all experts that a step of `batch` tokens touches when each token draws k of n evenly.
double ExpertShare(int experts, int per_token, int64_t batch) {
  if (experts <= 0 || per_token >= experts) return 1;
  const double missed = 1.0 - static_cast<double>(per_token) / experts;
  return 1.0 - std::pow(missed, static_cast<double>(batch));
}

// Multiplications and additions of one query's attention over `tokens`, in all layers.
double AttentionFlops(const ModelSpec& spec, double tokens) {
  double flops = 0;
  const double q = spec.num_q_heads;
  for (const LayerSpec& l : spec.layers) {
    switch (l.kind) {
      case LayerKind::kFull: flops += 4 * q * l.head_dim * tokens; break;
      case LayerKind::kWindow:
        flops += 4 * q * l.head_dim * std::min<double>(tokens, l.window);
        break;
      case LayerKind::kLatent: flops += 2 * q * (2.0 * l.latent_dim + l.rope_dim) * tokens; break;
      case LayerKind::kState: flops += 2 * static_cast<double>(l.state_bytes); break;
    }
  }
  return flops;
}

std::string Gb(double bytes) {
  return StrCat(std::round(bytes / 1e7) / 100, " GB");
}

}  // namespace

StepTime Planner::Decode(int64_t context, int64_t batch) const {
  StepTime step;
  for (const WeightGroup& g : spec_.weights) {
    if (g.params <= 0) continue;
    const double share = g.is_expert
                             ? ExpertShare(spec_.num_experts, spec_.experts_per_token, batch)
                             : g.active / g.params;
    step.weight_bytes += share * static_cast<double>(GroupBytes(g));
  }
  const auto n = static_cast<double>(batch);
  step.cache_bytes = n * cache_.ReadBytes(context);
  step.flops = n *
               (2 * spec_.active_params() + AttentionFlops(spec_, static_cast<double>(context))) /
               options_.num_devices;
  const Machine& m = options_.machine;
  if (m.read_bytes_per_second <= 0) return step;
  const double memory = (step.weight_bytes + step.cache_bytes) / m.read_bytes_per_second;
  const double compute = m.flops > 0 ? step.flops / m.flops : 0;
  step.ms = 1e3 * std::max(memory, compute);
  step.compute_bound = compute > memory;
  return step;
}

double Planner::PrefillFlops(int64_t context) const {
  double active = 0;
  for (const WeightGroup& g : spec_.weights) {
    // Only the last row of a prompt goes through the output head; a tied table is that head.
    if (g.name != "output head" && g.name != "embedding") active += g.active;
  }
  const auto n = static_cast<double>(context);
  // Query t sees t tokens: on average half.
  double attention = 0;
  const double q = spec_.num_q_heads;
  for (const LayerSpec& l : spec_.layers) {
    const double full = 2 * q * spec_.q_head_dim * n * n;
    switch (l.kind) {
      case LayerKind::kFull:
      case LayerKind::kLatent: attention += full; break;
      case LayerKind::kWindow:
        attention += std::min(full, 4 * q * spec_.q_head_dim * n * l.window);
        break;
      case LayerKind::kState: attention += 2 * static_cast<double>(l.state_bytes) * n; break;
    }
  }
  return (2 * active * n + attention) / options_.num_devices;
}

std::optional<double> Planner::FirstTokenSeconds(int64_t context, int64_t batch) const {
  const Machine& m = options_.machine;
  if (m.flops <= 0 || m.read_bytes_per_second <= 0 || spec_.active_params() <= 0) return {};
  const double chunks = std::ceil(static_cast<double>(context) / options_.chunk_len);
  const double reads = chunks * static_cast<double>(WeightsBytes()) / m.read_bytes_per_second;
  return static_cast<double>(batch) * std::max(PrefillFlops(context) / m.flops, reads);
}

Result<BreakEven> Planner::FindBreakEven(int64_t batch) const {
  BreakEven result;
  CacheFormat plain;
  plain.window = format_.window;
  TQ_ASSIGN_OR_RETURN(const Planner f16, Create(spec_, plain, options_));
  if (cache_.quantized_layers() == 0) {
    result.reason = "nothing is quantized";
    return result;
  }
  const auto gain = [&](int64_t context) {
    const StepTime a = f16.Decode(context, batch), b = Decode(context, batch);
    return 1 - (b.weight_bytes + b.cache_bytes) / (a.weight_bytes + a.cache_bytes);
  };
  if (gain(kMaxContext) < kPays) {
    result.reason = "weights, windows and states dominate at every context";
    return result;
  }
  int64_t below = 0, pays = kMaxContext;
  while (pays - below > 1) {
    const int64_t middle = below + (pays - below) / 2;
    (gain(middle) >= kPays ? pays : below) = middle;
  }
  result.context = pays;
  const StepTime at = f16.Decode(pays, batch);
  const double bytes = at.weight_bytes + at.cache_bytes;
  result.reason = StrCat("below ", pays, " tokens weights are over ",
                         std::floor(100 * at.weight_bytes / bytes), " % of the ", Gb(bytes),
                         " that a step reads with an f16 cache, and a step gains less than ",
                         100 * kPays, " %");
  return result;
}

Overflow Planner::PriceOverflow(int64_t context, int64_t batch, size_t capacity) const {
  Overflow over;
  const size_t total = TotalBytes(context, batch);
  if (total <= capacity) return over;
  over.bytes = total - capacity;
  const Machine& m = options_.machine;
  over.resident_ms = Decode(context, batch).ms;
  if (m.link_bytes_per_second > 0) {
    over.swap_ms = 1e3 * static_cast<double>(over.bytes) / m.link_bytes_per_second;
  }
  const size_t cache = AllSequences(context, batch).total();
  if (m.flops > 0 && over.bytes <= cache) {
    // That share of every sequence's tokens is computed again, from the first on.
    const double share = static_cast<double>(over.bytes) / static_cast<double>(cache);
    const auto tokens = static_cast<int64_t>(std::ceil(share * static_cast<double>(context)));
    over.recompute_ms = 1e3 * static_cast<double>(batch) * PrefillFlops(tokens) / m.flops;
  }
  return over;
}

}  // namespace tq
