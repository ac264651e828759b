// Memory line by line, and what is the longest that fits.
#include "turboquant/plan/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

struct NamedWeights {
  const char* name;
  const char* alias;
  double bits;
};
// Block formats with their scales: 32 values share 16 bits of scale (q4_1, q5_1: and 16 of
// minimum); 256 values of the K formats share more, by their layout.
constexpr std::array<NamedWeights, 15> kWeights = {{
    {"f32", "float32", 32},
    {"bf16", "bfloat16", 16},
    {"f16", "fp16", 16},
    {"fp8", "e4m3", 8},
    {"q8_0", "int8", 8.5},
    {"q6_k", "q6_k", 6.5625},
    {"q5_1", "q5_1", 6},
    {"q5_0", "q5_0", 5.5},
    {"q5_k", "q5_k", 5.5},
    {"q4_1", "q4_1", 5},
    {"q4_0", "int4", 4.5},
    {"q4_k", "q4_k", 4.5},
    {"mxfp4", "mxfp4", 4.25},
    {"q3_k", "q3_k", 3.4375},
    {"q2_k", "q2_k", 2.625},
}};

// Measured: what a run of a few tokens has resident beyond all other lines, with libraries and
// stacks; and what a byte-level BPE tokenizer of 49,152 tokens adds with the metadata of its file,
// per token.
constexpr size_t kProgramBytes = 20'800'000;
constexpr size_t kTokenizerBytesPerEntry = 208;
// Measured on an H200 with driver 580: a context with one module; a graph of 320 and of 3200 nodes.
constexpr size_t kCudaContextBytes = size_t{527} << 20;
constexpr size_t kGraphNodeBytes = 2700, kMinGraphBytes = size_t{2} << 20;
constexpr int kNodesPerLayer = 10;

// A block's entries in page tables and pools, with the room that growing arrays keep.
constexpr size_t kTableBytesPerBlock = 128;
// Blocks whose softmax sums are kept apart in a decode step on the host (attention/).
constexpr int64_t kRangeBlocks = 8;
// Tasks for each thread from which attention does not split blocks further; bytes of a query value
// as float and as digits of 8 and 16 bit.
constexpr int kTasksPerThread = 4, kDigitBytes = 7;

// Sizes stop here, far above any memory, so that sums of a few never overflow.
constexpr size_t kMostBytes = size_t{1} << 58;
size_t Bytes(double bytes) {
  return static_cast<size_t>(std::min(bytes, static_cast<double>(kMostBytes)));
}
size_t Times(size_t n, size_t bytes) {
  return bytes > kMostBytes / n ? kMostBytes : n * bytes;
}

int64_t RowsOf(const PlanOptions& o, int64_t context, int64_t batch) {
  return std::max(batch, std::min<int64_t>(o.chunk_len, context));
}

}  // namespace

Result<WeightChoice> ParseWeightChoice(std::string_view name) {
  std::string lower;
  for (const char c : name) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "file") return WeightChoice{};
  std::string list = "file";
  for (const NamedWeights& w : kWeights) {
    if (lower == w.name || lower == w.alias) return WeightChoice{w.name, w.bits};
    list += std::string(", ") + w.name;
  }
  char* end = nullptr;
  const double bits = std::strtod(lower.c_str(), &end);
  if (!lower.empty() && end == lower.c_str() + lower.size() && bits >= 1 && bits <= 32) {
    return WeightChoice{lower + " bits", bits};
  }
  return InvalidArgument("weight format '", name, "' is not known; use ", list,
                         ", or bits per weight from 1 to 32");
}

double MemoryPlan::ratio() const {
  return cache_bytes == 0 ? 0 : static_cast<double>(f16_bytes) / static_cast<double>(cache_bytes);
}

Result<Planner> Planner::Create(ModelSpec spec, CacheFormat format, PlanOptions options) {
  if (!options.center) spec.num_center_freq = 0;
  TQ_ASSIGN_OR_RETURN(CachePlan cache, CachePlan::Create(spec, format, options.num_devices));
  if (options.chunk_len == 0) options.chunk_len = options.machine.is_host ? 128 : 2048;
  if (options.chunk_len < 1 || options.chunk_len > 1 << 20) {
    return InvalidArgument("chunk_len = ", options.chunk_len, "; expected 1 to ", 1 << 20);
  }
  if (options.shared_prefix < 0 || options.shared_prefix > kMaxContext) {
    return InvalidArgument("shared prefix = ", options.shared_prefix, " tokens; expected 0 to ",
                           kMaxContext);
  }
  return Planner(std::move(spec), std::move(format), std::move(options), std::move(cache));
}

size_t Planner::GroupBytes(const WeightGroup& g) const {
  double bytes = 0;
  if (options_.weights.bits == 0 && g.stored_bytes > 0) {
    bytes = static_cast<double>(g.stored_bytes);
  } else {
    const double bits = options_.weights.bits == 0 ? 16 : options_.weights.bits;
    // Norms stay 16 bit beside 16-bit matrices and float32 beside blocks.
    bytes = g.params * (g.is_matrix ? bits : bits == 16 ? 16 : 32) / 8;
  }
  return static_cast<size_t>(std::ceil(g.is_matrix ? bytes / options_.num_devices : bytes));
}

size_t Planner::WeightsBytes() const {
  size_t sum = 0;
  for (const WeightGroup& g : spec_.weights) sum += GroupBytes(g);
  return sum;
}

CacheParts Planner::AllSequences(int64_t context, int64_t batch) const {
  CacheParts one = cache_.At(context, options_.chunk_len), all = one;
  const CacheParts shared = cache_.Shared(options_.shared_prefix, context);
  const auto n = static_cast<size_t>(batch);
  // All but the first hold what they do not share.
  const auto scale = [n](size_t bytes, size_t common) { return Times(n, bytes - common) + common; };
  all.payload = scale(one.payload, shared.payload);
  all.scales = scale(one.scales, shared.scales);
  all.sinks = scale(one.sinks, shared.sinks);
  all.recent = Times(n, one.recent);
  all.windows = Times(n, one.windows);
  all.states = Times(n, one.states);
  all.in_flight = Times(n, one.in_flight);
  return all;
}

std::vector<MemoryLine> Planner::FixedLines(int64_t context, int64_t batch) const {
  std::vector<MemoryLine> lines;
  const bool host = options_.machine.is_host;
  const auto devices = static_cast<int64_t>(options_.num_devices);
  const int64_t blocks = DivCeil<int64_t>(context, kPageLen) * batch;
  lines.push_back({"page tables", static_cast<size_t>(blocks) * kTableBytesPerBlock,
                   StrCat(kTableBytesPerBlock, " bytes a block"), false});

  int64_t kv_dim = 0, heads = 0, padded = 0;
  for (const LayerSpec& l : spec_.layers) {
    kv_dim =
        std::max<int64_t>(kv_dim, int64_t{l.num_kv_heads} * l.head_dim + l.latent_dim + l.rope_dim);
    heads = std::max<int64_t>(heads, l.num_kv_heads);
    padded = std::max<int64_t>(padded, PaddedDim(l.head_dim));
  }
  const int64_t rows = RowsOf(options_, context, batch);
  const int64_t q_dim = int64_t{spec_.num_q_heads} * spec_.q_head_dim;
  if (spec_.hidden_dim == 0) {
    lines.push_back({"activations", 0, "not counted: the hidden dimension is not known", true});
  } else {
    const int64_t split = 2 * q_dim + 2 * kv_dim + 2 * spec_.ffn_dim;
    const int64_t values = 2 * spec_.hidden_dim + DivCeil(split, devices);
    int64_t row_bytes = values * (host ? 4 : 2);
    // Activations as 16-bit digits with sums, for one product at a time; angles of RoPE.
    if (host) {
      const int64_t widest = std::max({spec_.hidden_dim, spec_.ffn_dim, q_dim});
      row_bytes += widest * 2 + widest / 32 * 12 + int64_t{4} * spec_.q_head_dim;
    }
    lines.push_back({"activations", static_cast<size_t>(rows * row_bytes),
                     StrCat(rows, " rows of a prefill step or batch"), !host});
  }
  if (spec_.vocab_size == 0) {
    lines.push_back({"logits", 0, "not counted: the vocabulary is not known", true});
  } else {
    const int64_t copies = host ? 2 : 1;
    lines.push_back({"logits", static_cast<size_t>(batch * copies * spec_.vocab_size * 4),
                     StrCat(batch * copies, " rows of float32"), false});
  }
  if (heads > 0 && spec_.num_q_heads > 0) {
    const int64_t group = DivCeil<int64_t>(spec_.num_q_heads, heads);
    const int64_t ranges = DivCeil<int64_t>(context, kPageLen * kRangeBlocks);
    // One query of each sequence, or on the host a chunk of prefill: where its tiles are too few to
    // keep the threads busy, each splits its blocks too, and all their sums are kept.
    int64_t tasks = DivCeil(heads, devices) * batch, queries = 1;
    const int64_t tiles = DivCeil<int64_t>(std::min<int64_t>(rows, context), kPageLen);
    if (host && tiles * heads < int64_t{kTasksPerThread} * options_.threads) {
      tasks = std::max(tasks, tiles * heads);
      queries = std::min<int64_t>(kPageLen, context);
    }
    const int64_t state_rows = group * queries;
    const int64_t state = 2 * RoundUp<int64_t>(state_rows, 16) + state_rows * padded;
    const int64_t digits = host ? state_rows * padded * kDigitBytes : 0;
    lines.push_back(
        {"attention sums",
         Bytes(static_cast<double>(tasks) * static_cast<double>(ranges * state * 4 + digits)),
         StrCat(queries, queries == 1 ? " query" : " queries", " x ", group, " heads, a range of ",
                kRangeBlocks, " blocks each"),
         false});
  }
  if (host) {
    const auto vocab = static_cast<size_t>(spec_.vocab_size);
    lines.push_back({"tokenizer and metadata", vocab * kTokenizerBytesPerEntry,
                     StrCat(kTokenizerBytesPerEntry,
                            " bytes a token, as measured with one "
                            "byte-level BPE"),
                     true});
    lines.push_back({"program and libraries", kProgramBytes, "measured", true});
  } else {
    const auto nodes = static_cast<size_t>(spec_.num_layers() * kNodesPerLayer);
    lines.push_back({"CUDA context", kCudaContextBytes,
                     "measured on an H200, driver 580; other devices differ", true});
    lines.push_back({"CUDA graph", std::max(kMinGraphBytes, nodes * kGraphNodeBytes),
                     StrCat(nodes, " nodes, measured on an H200"), true});
  }
  return lines;
}

Result<MemoryPlan> Planner::Memory(int64_t context, int64_t batch) const {
  if (context < 1 || context > kMaxContext) {
    return InvalidArgument("context = ", context, " tokens; expected 1 to ", kMaxContext);
  }
  if (batch < 1 || batch > kMaxBatch) {
    return InvalidArgument("batch = ", batch, " sequences; expected 1 to ", kMaxBatch);
  }
  MemoryPlan plan;
  for (const WeightGroup& g : spec_.weights) {
    const size_t bytes = GroupBytes(g);
    plan.weights_bytes += bytes;
    std::string note = options_.weights.name;
    if (options_.weights.bits == 0) {
      note = g.stored_bytes > 0 ? "as loaded from the file" : "bf16: there is no file to read";
    }
    plan.lines.push_back({"weights: " + g.name, bytes, note, false});
  }
  plan.sequence = cache_.At(context, options_.chunk_len);
  CacheParts all = AllSequences(context, batch);
  plan.cache_bytes = all.total() - all.in_flight;
  plan.f16_bytes = Times(static_cast<size_t>(batch), cache_.F16Bytes(context));
  const std::string sequences = batch == 1 ? "" : StrCat(" x ", batch, " sequences");

  // Rows of the last block that no token fills yet.
  const int64_t unfilled = DivCeil<int64_t>(context, kPageLen) * kPageLen - context;
  auto rounding =
      static_cast<size_t>(static_cast<double>(unfilled * batch) * cache_.OpenRowBytes());
  size_t& last = all.recent > 0 ? all.recent : all.sinks;
  rounding = std::min(rounding, last);
  last -= rounding;
  const auto line = [&](const char* name, size_t bytes, const std::string& note) {
    if (bytes > 0) plan.lines.push_back({name, bytes, note + sequences, false});
  };
  const CacheWindow& w = format_.window;
  const int bits = w.recent == RecentType::kQ8 ? 8 : 16;
  line("cache: codes", all.payload, format_.name);
  line("cache: scales", all.scales, "scales and side information of sealed blocks");
  line("cache: recent window", all.recent,
       StrCat(w.recent_len, " tokens and ", w.rollback_len, " for rollback at ", bits, " bit"));
  line("cache: first tokens", all.sinks, StrCat("sink_len ", w.sink_len, " at ", bits, " bit"));
  line("cache: page rounding", rounding, StrCat(unfilled, " rows of the last block are free"));
  line("cache: sliding windows", all.windows, "16 bit");
  line("cache: states", all.states, "linear layers, as the model types them");
  line("cache: centre tables", all.tables, "one for all sequences");
  line("cache: in flight", all.in_flight, "blocks of an append, before others are released");
  for (MemoryLine& l : FixedLines(context, batch)) plan.lines.push_back(std::move(l));

  plan.largest_uncertain = plan.lines.size();
  for (size_t i = 0; i < plan.lines.size(); ++i) {
    const MemoryLine& l = plan.lines[i];
    plan.total_bytes += l.bytes;
    if (l.uncertain && (plan.largest_uncertain == plan.lines.size() ||
                        l.bytes > plan.lines[plan.largest_uncertain].bytes)) {
      plan.largest_uncertain = i;
    }
  }
  return plan;
}

size_t Planner::TotalBytes(int64_t context, int64_t batch) const {
  size_t sum = WeightsBytes() + AllSequences(context, batch).total();
  for (const MemoryLine& l : FixedLines(context, batch)) sum += l.bytes;
  return sum;
}

int64_t Planner::MaxContext(int64_t batch, size_t capacity) const {
  if (TotalBytes(1, batch) > capacity) return 0;
  int64_t fits = 1, too_long = kMaxContext + 1;
  while (too_long - fits > 1) {
    const int64_t middle = fits + (too_long - fits) / 2;
    (TotalBytes(middle, batch) <= capacity ? fits : too_long) = middle;
  }
  return fits;
}

int64_t Planner::MaxSequences(int64_t context, size_t capacity) const {
  if (TotalBytes(context, 1) > capacity) return 0;
  int64_t fits = 1, too_many = kMaxBatch + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (TotalBytes(context, middle) <= capacity ? fits : too_many) = middle;
  }
  return fits;
}

}  // namespace tq
