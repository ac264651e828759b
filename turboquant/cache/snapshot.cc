// The file of one sequence: a header with sizes and sums, then the sections in the order of kNames.
#include "turboquant/cache/snapshot.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <utility>

#include "turboquant/base/file.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

static_assert(std::endian::native == std::endian::little, "cache files are little-endian");

enum Section {
  kModel,
  kKv,
  kFormats,
  kTokens,
  kLogits,
  kBlocks,
  kOpen,
  kSealed,
  kWindow,
  kNumSections
};
constexpr const char* kNames[kNumSections] = {
    "model",  "kv",          "formats",       "tokens",       "logits",
    "blocks", "open blocks", "sealed blocks", "window blocks"};
// Sections of slots, with the form of a block that each holds.
constexpr uint8_t kHasOpen = 1, kHasSealed = 2, kHasWindow = 4;  // of a byte of `blocks`
// Bounds of the sections that no other number of the file bounds.
constexpr uint64_t kMaxName = 4096, kMaxFormats = 16 << 20, kMaxLogits = 64 << 20;

constexpr uint32_t kExact = 1;  // of Header::flags

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t structure_hash;
  uint64_t formats_hash;  // xxh3 of the section `formats`
  char layout[16];        // zero-padded
  uint64_t length;        // tokens
  uint64_t open_slot_bytes, sealed_slot_bytes;
  uint32_t flags;
  uint32_t zero;
  struct {
    uint64_t bytes, xxh3;
  } sections[kNumSections];
  uint64_t window_slot_bytes;
  uint64_t reserved[2];  // zero
  uint64_t xxh3;         // of all before
};
static_assert(sizeof(Header) == 256 && std::is_trivially_copyable_v<Header>);

uint64_t HeaderSum(const Header& h) {
  return Hash64(&h, offsetof(Header, xxh3));
}

using Bytes = std::span<const std::byte>;
Bytes BytesOf(std::string_view s) {
  return std::as_bytes(std::span(s.data(), s.size()));
}

std::string Range(const char* what, int first, int last) {
  return first == last ? StrCat(what, " ", first) : StrCat(what, "s ", first, "-", last);
}

// The bindings name every member, so that a new axis does not compile until its text is here: files
// of different axes must differ.
std::string AxesText(const Codec& c) {
  const auto& [type, bits, rotate, group_len, scale, zero, codebook, gain, center] = c;
  const std::string group = group_len == kGroupHead ? "head" : StrCat(group_len);
  return StrCat(Name(type), " ", bits, " bits, rotate ", Name(rotate), ", group ", group,
                ", scale ", Name(scale), ", zero ", Name(zero), ", codebook ", Name(codebook),
                ", gain ", Name(gain), ", center ", Name(center));
}

std::string FormatText(const HeadFormat& f) {
  const auto& [k, v, anchors, anchor_bits] = f;
  const std::string anchor_text =
      anchors > 0 ? StrCat("; ", anchors, " anchors of ", anchor_bits, " bits") : std::string();
  return StrCat(PresetName(f), "; K ", AxesText(k), "; V ", AxesText(v), anchor_text);
}

// Of everything that comes from a profile's tensors: RoPE, centres, matrices, books, mean queries.
uint64_t TensorsHash(const CacheConfig& config) {
  uint64_t hash = Hash64(config.rope.inv_freq.data(), config.rope.inv_freq.size() * sizeof(float));
  const auto add = [&hash](const auto& v) { hash = Hash64(&v, sizeof v, hash); };
  add(config.rope.attention_scale);
  for (const HeadCenter& center : config.centers) {
    add(center.pairs.size());
    for (const HeadCenter::Pair& p : center.pairs) {
      for (const int n : {p.i, p.j, p.freq}) add(n);
      for (const float mu : {p.mu_i, p.mu_j}) add(mu);
    }
  }
  const auto add_all = [&](const std::vector<float>& v) {
    add(v.size());
    hash = Hash64(v.data(), v.size() * sizeof(float), hash);
  };
  for (const HeadTensors& t : config.tensors) {
    for (const auto* v : {&t.k_matrix, &t.v_matrix, &t.k_levels, &t.v_levels}) add_all(*v);
    add(t.queries.rms);
    for (const std::vector<float>& mean : t.queries.means) add_all(mean);
  }
  return hash;
}

std::string Hex(uint64_t n) {
  std::ostringstream out;
  out << std::hex << n;
  return out.str();
}

// The first line in which two texts differ, of each.
std::pair<std::string, std::string> FirstDifference(std::string_view a, std::string_view b) {
  const auto next = [](std::string_view& s) {
    const size_t end = std::min(s.find('\n'), s.size());
    const std::string line(s.substr(0, end));
    s.remove_prefix(std::min(end + 1, s.size()));
    return line;
  };
  while (!a.empty() || !b.empty()) {
    std::string x = next(a), y = next(b);
    // Up to the axes, when the names before them tell the two apart already.
    const auto head = [](const std::string& line) { return line.substr(0, line.find(';')); };
    if (head(x) != head(y)) x = head(x), y = head(y);
    if (x != y) return {x.empty() ? "nothing" : x, y.empty() ? "nothing" : y};
  }
  return {};
}

// Codes of 8 bits may be any, fp8 included; scales and 16-bit values must be such as a write makes
// them, or the arithmetic of sealing would leave its range.
bool ScalesAreSane(const std::byte* scales, size_t bytes) {
  // A rotation may gather the length of a whole row in one channel.
  const float most = kMaxRowValue * std::sqrt(static_cast<float>(kMaxHeadDim)) / 126;
  for (size_t i = 0; i < bytes; i += sizeof(float)) {
    float scale;
    std::memcpy(&scale, scales + i, sizeof scale);
    if (!(scale >= 0 && scale <= most)) return false;
  }
  return true;
}

bool ValuesAreSane(const std::byte* values, size_t bytes, ValueType type) {
  for (size_t i = 0; OpenBits(type) == 16 && i < bytes; i += sizeof(uint16_t)) {
    uint16_t value;
    std::memcpy(&value, values + i, sizeof value);
    const float f = type == ValueType::kBF16 ? F32FromBF16(value) : F32FromF16(value);
    if (!std::isfinite(f)) return false;
  }
  return true;
}

// Of an open slot, or of a window slot: they have the heads of other layers.
bool OpenSlotIsSane(const KvCache& cache, const std::byte* slot, bool windows) {
  for (int layer = 0; layer < cache.config().num_layers; ++layer) {
    for (int head = 0; head < cache.config().num_kv_heads; ++head) {
      const KvCache::HeadLayout& l = cache.layout(layer, head);
      if ((l.window > 0) != windows) continue;
      const OpenLayout& o = l.open;
      const std::byte* part = slot + l.open_offset;
      if (!ValuesAreSane(part + o.k_values, o.k_scales - o.k_values, o.k_type) ||
          !ScalesAreSane(part + o.k_scales, o.v_values - o.k_scales) ||
          !ValuesAreSane(part + o.v_values, o.v_scales - o.v_values, o.v_type) ||
          !ScalesAreSane(part + o.v_scales, o.bytes - o.v_scales)) {
        return false;
      }
    }
  }
  return true;
}

bool SealedSlotIsSane(const KvCache& cache, const std::byte* slot) {
  for (int layer = 0; layer < cache.config().num_layers; ++layer) {
    if (cache.config().window(layer) > 0) continue;
    for (int head = 0; head < cache.config().num_kv_heads; ++head) {
      RecordSideInfo info;
      std::memcpy(&info, slot + cache.layout(layer, head).side_offset, sizeof info);
      for (const bf16_t base : {info.k_base, info.v_base, info.v_bound}) {
        if (!std::isfinite(F32FromBF16(base))) return false;
      }
      for (int a = 0; a < cache.format(layer, head).anchors; ++a) {
        AnchorInfo anchor;
        std::memcpy(&anchor,
                    slot + cache.layout(layer, head).side_offset + sizeof info +
                        static_cast<size_t>(a) * sizeof anchor,
                    sizeof anchor);
        if (anchor.token >= kPageLen || !std::isfinite(F32FromBF16(anchor.k_scale)) ||
            !std::isfinite(F32FromBF16(anchor.v_scale))) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

// The blocks must have the forms that appends, truncation and attention rely on.
Result<SeqId> KvCache::Import(int64_t length, std::span<const BlockBytes> blocks, bool exact) {
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  TQ_CHECK(length >= 0 && num_blocks == DivCeil<int64_t>(length, kPageLen));
  const int64_t next_block = length / kPageLen;  // of the next token
  size_t num_open = 0, num_sealed = 0, num_window = 0;
  for (int64_t b = 0; b < num_blocks; ++b) {
    const auto [open, sealed, window] = blocks[static_cast<size_t>(b)];
    const bool needs_window = window_ > 0 && b >= FirstWindowBlock(length);
    if ((window == nullptr && needs_window) || (window != nullptr && window_ == 0)) {
      return DataLoss("block ", b, " of ", num_blocks, " for ", length, " tokens has ",
                      window == nullptr ? "no" : "a", " window form, which no sequence has");
    }
    // A block that is still written to, or never leaves the window, has no codes.
    const bool only_open = b < rule_.sink_blocks || b == next_block;
    const bool needs_open = only_open || b >= next_block - rule_.recent_blocks;
    if ((has_full_layers() && open == nullptr && (needs_open || sealed == nullptr)) ||
        (sealed != nullptr && only_open) ||
        (!has_full_layers() && (open != nullptr || sealed != nullptr))) {
      return DataLoss("block ", b, " of ", num_blocks, " for ", length, " tokens has ",
                      open == nullptr ? "no open" : "an open", " and ",
                      sealed == nullptr ? "no sealed" : "a sealed", " form, which no sequence has");
    }
    if ((open != nullptr && !OpenSlotIsSane(*this, open, false)) ||
        (window != nullptr && !OpenSlotIsSane(*this, window, true)) ||
        (sealed != nullptr && !SealedSlotIsSane(*this, sealed))) {
      return DataLoss("block ", b, " of ", num_blocks, " has numbers that no block has");
    }
    num_open += open != nullptr;
    num_sealed += sealed != nullptr;
    num_window += window != nullptr;
  }
  const size_t more = num_open * open_slot_bytes_ + num_sealed * sealed_slot_bytes_ +
                      num_window * window_slot_bytes_;
  const size_t held = Bytes().total();
  if (config_.max_bytes != 0 && held + more > config_.max_bytes) {
    return ResourceExhausted("cache: ", length, " tokens need ", more, " bytes beside ", held,
                             " in use; the limit is ", config_.max_bytes);
  }
  Sequence s;
  s.length = length;
  s.exact = exact;
  s.blocks.resize(blocks.size());
  const auto copy = [](BlockPool& pool, const std::byte* from, SlotId* id) {
    if (from == nullptr) return true;
    *id = pool.Allocate();
    if (*id == kNoSlot) return false;
    std::copy_n(from, pool.slot_bytes(), pool.data(*id));
    return true;
  };
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (!copy(open_pool_, blocks[b].open, &s.blocks[b].open) ||
        !copy(sealed_pool_, blocks[b].sealed, &s.blocks[b].sealed) ||
        !copy(window_pool_, blocks[b].window, &s.blocks[b].window)) {
      ReleaseBlocksFrom(s, 0);
      return ResourceExhausted("cache: out of memory for ", length, " tokens (", more,
                               " bytes beside ", held, " in use)");
    }
  }
  if (!center_table_.empty()) center_table_.EnsureBlocks(num_blocks);
  const SeqId id = next_seq_++;
  sequences_[id] = std::move(s);
  return id;
}

std::string DescribeFormats(const CacheConfig& config) {
  // All members, for the same reason as in AxesText. RoPE is part of the model's structure;
  // v_skip, max_bytes and log change no slot.
  const auto& [num_layers, heads, head_dim, recent_len, sink_len, rollback_len, recent, formats,
               windows, rope, centers, tensors, seed, v_skip, max_bytes, log] = config;
  const auto at = [&config](int layer, int head) -> const HeadFormat& {
    return config.formats[static_cast<size_t>(layer) * config.num_kv_heads + head];
  };
  bool calibrated = false;
  for (const HeadFormat& f : formats) {
    calibrated |= f.k.center != Center::kNone || f.anchors > 0;
    for (const Codec* codec : {&f.k, &f.v}) {
      calibrated |= codec->rotate == Rotate::kMatrix || codec->codebook == Codebook::kCalibrated;
    }
  }
  std::string out =
      StrCat("shape: ", num_layers, " layers x ", heads, " KV heads x head_dim ", head_dim,
             "\nwindow: ", RoundUp(recent_len, kPageLen), " recent tokens at ",
             recent == RecentType::kQ8 ? "q8" : "f16", ", first ", RoundUp(sink_len, kPageLen),
             ", rollback ", rollback_len, "\nrotation seed: ", seed,
             "\ncalibrated tensors: ", calibrated ? Hex(TensorsHash(config)) : "none", "\n");
  for (int layer = 0; layer < num_layers;) {
    int end = layer + 1;
    const auto same_as_first = [&](int other) {
      for (int h = 0; h < config.num_kv_heads; ++h) {
        if (!(at(layer, h) == at(other, h))) return false;
      }
      return true;
    };
    const int window = config.window(layer);
    while (end < num_layers && same_as_first(end) && config.window(end) == window) ++end;
    const std::string layers = Range("layer", layer, end - 1) +
                               (window > 0 ? StrCat(" with a window of ", window) : std::string());
    for (int head = 0; head < heads;) {
      int head_end = head + 1;
      while (head_end < heads && at(layer, head) == at(layer, head_end)) ++head_end;
      out += StrCat(layers, ", ", Range("head", head, head_end - 1), ": ",
                    FormatText(at(layer, head)), "\n");
      head = head_end;
    }
    layer = end;
  }
  return out;
}

Status SaveSnapshot(const KvCache& cache, SeqId seq, const SnapshotMeta& meta,
                    const std::string& path) {
  TQ_ASSIGN_OR_RETURN(const int64_t length, cache.Length(seq));
  if (cache.VisibleLength(seq) != length) {
    return FailedPrecondition("cache: sequence ", seq, " cannot be saved during an append");
  }
  if (meta.tokens.size() != static_cast<size_t>(length)) {
    return InvalidArgument("cache: ", meta.tokens.size(), " token ids for a sequence of ", length,
                           " tokens");
  }
  const std::string formats = DescribeFormats(cache.config());
  if (meta.model.size() > kMaxName || meta.kv.size() > kMaxName || formats.size() > kMaxFormats ||
      meta.logits.size() * sizeof(float) > kMaxLogits) {
    return InvalidArgument("cache: names of ", meta.model.size(), " and ", meta.kv.size(),
                           " bytes, formats of ", formats.size(), " and logits of ",
                           meta.logits.size() * sizeof(float), " do not fit a file; at most ",
                           kMaxName, ", ", kMaxName, ", ", kMaxFormats, " and ", kMaxLogits);
  }

  std::vector<uint8_t> blocks(static_cast<size_t>(DivCeil<int64_t>(length, kPageLen)));
  std::vector<Bytes> pieces[kNumSections];
  pieces[kModel] = {BytesOf(meta.model)};
  pieces[kKv] = {BytesOf(meta.kv)};
  pieces[kFormats] = {BytesOf(formats)};
  pieces[kTokens] = {std::as_bytes(std::span(meta.tokens))};
  pieces[kLogits] = {std::as_bytes(std::span(meta.logits))};
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (const std::byte* open = cache.OpenSlot(seq, static_cast<int64_t>(b))) {
      blocks[b] |= kHasOpen;
      pieces[kOpen].emplace_back(open, cache.open_slot_bytes());
    }
    if (const std::byte* sealed = cache.SealedSlot(seq, static_cast<int64_t>(b))) {
      blocks[b] |= kHasSealed;
      pieces[kSealed].emplace_back(sealed, cache.sealed_slot_bytes());
    }
    if (const std::byte* window = cache.WindowSlot(seq, static_cast<int64_t>(b))) {
      blocks[b] |= kHasWindow;
      pieces[kWindow].emplace_back(window, cache.window_slot_bytes());
    }
  }
  pieces[kBlocks] = {std::as_bytes(std::span(blocks))};

  Header h{};
  std::memcpy(h.magic, kSnapshotMagic, sizeof h.magic);
  h.version = kSnapshotVersion;
  h.header_bytes = sizeof h;
  h.structure_hash = meta.structure_hash;
  h.formats_hash = Hash64(BytesOf(formats));
  std::memcpy(h.layout, kSnapshotLayout, sizeof kSnapshotLayout);
  h.length = static_cast<uint64_t>(length);
  h.open_slot_bytes = cache.open_slot_bytes();
  h.sealed_slot_bytes = cache.sealed_slot_bytes();
  h.window_slot_bytes = cache.window_slot_bytes();
  h.flags = cache.IsExact(seq) ? kExact : 0;
  for (int s = 0; s < kNumSections; ++s) {
    for (const Bytes piece : pieces[s]) {
      h.sections[s].bytes += piece.size();
      h.sections[s].xxh3 = Hash64(piece, h.sections[s].xxh3);
    }
  }
  h.xxh3 = HeaderSum(h);

  TQ_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  const auto write = [&file](const void* p, size_t n) {
    return file.Write({static_cast<const char*>(p), n});
  };
  TQ_RETURN_IF_ERROR(write(&h, sizeof h));
  for (const std::vector<Bytes>& section : pieces) {
    for (const Bytes piece : section) TQ_RETURN_IF_ERROR(write(piece.data(), piece.size()));
  }
  return file.Commit();
}

Result<Snapshot> Snapshot::Open(const std::string& path) {
  TQ_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  auto file = std::make_unique<MappedFile>(std::move(mapped));
  TQ_ASSIGN_OR_RETURN(Snapshot snapshot, Parse(file->bytes(), path));
  // What was read for the sums need not stay in memory until it is restored.
  file->Release(file->bytes());
  snapshot.file_ = std::move(file);
  return snapshot;
}

Result<Snapshot> Snapshot::Parse(std::span<const std::byte> bytes, const std::string& name) {
  const std::string in = StrCat("'", name, "' ");
  Header h{};
  if (bytes.size() < sizeof h.magic ||
      std::memcmp(bytes.data(), kSnapshotMagic, sizeof h.magic) != 0) {
    return InvalidArgument(in, "is not a cache file: it does not begin with ", kSnapshotMagic);
  }
  if (bytes.size() < sizeof h) {
    return DataLoss(in, "is truncated: it has ", bytes.size(), " bytes, the header alone has ",
                    sizeof h);
  }
  std::memcpy(&h, bytes.data(), sizeof h);
  if (h.version != kSnapshotVersion) {
    return Unsupported(in, "has version ", h.version, " of the cache file; this program reads ",
                       "version ", kSnapshotVersion, "; save the cache again");
  }
  if (h.xxh3 != HeaderSum(h) || h.header_bytes != sizeof h) {
    return DataLoss(in, "is damaged: the sum of its header is wrong");
  }
  const std::string layout(h.layout, ::strnlen(h.layout, sizeof h.layout));
  if (layout != kSnapshotLayout) {
    return Unsupported(in, "has the layout '", layout, "'; this cache reads '", kSnapshotLayout,
                       "'");
  }
  // The sizes, against the length of the file and each other, before anything is believed.
  uint64_t left = bytes.size() - sizeof h;
  bool fits = true;
  for (const auto& section : h.sections) {
    fits = fits && section.bytes <= left;
    left -= fits ? section.bytes : 0;
  }
  if (!fits || left != 0) {
    return DataLoss(in, "has ", bytes.size(), " bytes, ", fits ? "more" : "fewer",
                    " than its header counts: it was ", fits ? "added to" : "truncated");
  }
  const auto size = [&h](Section s) { return h.sections[s].bytes; };
  const uint64_t num_blocks = h.length / kPageLen + (h.length % kPageLen != 0);
  if (size(kModel) > kMaxName || size(kKv) > kMaxName || size(kFormats) > kMaxFormats ||
      size(kLogits) > kMaxLogits || size(kLogits) % sizeof(float) != 0 ||
      size(kTokens) % sizeof(int32_t) != 0 || size(kTokens) / sizeof(int32_t) != h.length ||
      size(kBlocks) != num_blocks) {
    return DataLoss(in, "contradicts itself: sections of ", size(kTokens), " bytes of tokens and ",
                    size(kBlocks), " blocks for ", h.length, " tokens");
  }

  Snapshot out;
  out.name_ = name;
  out.file_bytes_ = bytes.size();
  Bytes sections[kNumSections];
  bytes = bytes.subspan(sizeof h);
  for (int s = 0; s < kNumSections; ++s) {
    sections[s] = bytes.first(h.sections[s].bytes);
    bytes = bytes.subspan(h.sections[s].bytes);
  }
  for (const std::byte b : sections[kBlocks]) {
    const auto forms = static_cast<uint8_t>(b);
    if (forms > (kHasOpen | kHasSealed | kHasWindow)) {
      return DataLoss(in, "contradicts itself: a block has the forms ", int{forms});
    }
    out.num_open_ += (forms & kHasOpen) != 0;
    out.num_sealed_ += (forms & kHasSealed) != 0;
    out.num_window_ += (forms & kHasWindow) != 0;
  }
  const auto holds = [&](Section s, int64_t slots, uint64_t slot_bytes) {
    if (slots == 0) return size(s) == 0;
    return slot_bytes > 0 && size(s) % slot_bytes == 0 &&
           size(s) / slot_bytes == static_cast<uint64_t>(slots);
  };
  if (!holds(kOpen, out.num_open_, h.open_slot_bytes) ||
      !holds(kSealed, out.num_sealed_, h.sealed_slot_bytes) ||
      !holds(kWindow, out.num_window_, h.window_slot_bytes)) {
    return DataLoss(in, "contradicts itself: ", size(kOpen), ", ", size(kSealed), " and ",
                    size(kWindow), " bytes for ", out.num_open_, " open slots of ",
                    h.open_slot_bytes, ", ", out.num_sealed_, " sealed ones of ",
                    h.sealed_slot_bytes, " and ", out.num_window_, " window slots of ",
                    h.window_slot_bytes);
  }
  for (int s = 0; s < kNumSections; ++s) {
    const uint64_t piece = s == kOpen     ? h.open_slot_bytes
                           : s == kSealed ? h.sealed_slot_bytes
                           : s == kWindow ? h.window_slot_bytes
                                          : sections[s].size();
    const int64_t pieces = s == kOpen     ? out.num_open_
                           : s == kSealed ? out.num_sealed_
                           : s == kWindow ? out.num_window_
                                          : 1;
    uint64_t sum = 0;
    for (int64_t i = 0; i < pieces; ++i) {
      sum = Hash64(sections[s].subspan(static_cast<uint64_t>(i) * piece, piece), sum);
    }
    if (sum != h.sections[s].xxh3) {
      return DataLoss(in, "is damaged: the sum of its ", kNames[s], " is wrong");
    }
  }
  const auto text = [&](Section s) {
    return std::string(reinterpret_cast<const char*>(sections[s].data()), sections[s].size());
  };
  out.formats_ = text(kFormats);
  if (h.formats_hash != Hash64(sections[kFormats])) {
    return DataLoss(in, "contradicts itself: the hash of its formats is another");
  }
  out.meta_.structure_hash = h.structure_hash;
  out.meta_.model = text(kModel);
  out.meta_.kv = text(kKv);
  out.meta_.tokens.resize(h.length);
  out.meta_.logits.resize(size(kLogits) / sizeof(float));
  out.blocks_.resize(num_blocks);
  const auto copy = [&](Section s, auto& to) {
    if (!to.empty()) std::memcpy(to.data(), sections[s].data(), sections[s].size());
  };
  copy(kTokens, out.meta_.tokens);
  copy(kLogits, out.meta_.logits);
  copy(kBlocks, out.blocks_);
  out.open_ = sections[kOpen];
  out.sealed_ = sections[kSealed];
  out.window_ = sections[kWindow];
  out.open_slot_bytes_ = h.open_slot_bytes;
  out.sealed_slot_bytes_ = h.sealed_slot_bytes;
  out.window_slot_bytes_ = h.window_slot_bytes;
  out.exact_ = (h.flags & kExact) != 0;
  return out;
}

Result<SeqId> Snapshot::Restore(KvCache& cache, uint64_t structure_hash) const {
  const std::string in = StrCat("'", name_, "' ");
  if (structure_hash != meta_.structure_hash) {
    return InvalidArgument(in, "was saved from another model: '", meta_.model, "' of structure ",
                           Hex(meta_.structure_hash), "; this one has structure ",
                           Hex(structure_hash));
  }
  if (const std::string here = DescribeFormats(cache.config()); here != formats_) {
    const auto [theirs, ours] = FirstDifference(formats_, here);
    return InvalidArgument(in, "was saved with other formats (", meta_.kv, "): it has '", theirs,
                           "', this cache '", ours, "'; use the formats that it was saved with");
  }
  if ((num_open_ > 0 && open_slot_bytes_ != cache.open_slot_bytes()) ||
      (num_sealed_ > 0 && sealed_slot_bytes_ != cache.sealed_slot_bytes()) ||
      (num_window_ > 0 && window_slot_bytes_ != cache.window_slot_bytes())) {
    return DataLoss(in, "contradicts itself: slots of ", open_slot_bytes_, ", ", sealed_slot_bytes_,
                    " and ", window_slot_bytes_, " bytes, but its formats have ",
                    cache.open_slot_bytes(), ", ", cache.sealed_slot_bytes(), " and ",
                    cache.window_slot_bytes());
  }
  std::vector<KvCache::BlockBytes> blocks(blocks_.size());
  const std::byte *open = open_.data(), *sealed = sealed_.data(), *window = window_.data();
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto take = [&](uint8_t form, const std::byte** next, size_t bytes) -> const std::byte* {
      return (blocks_[b] & form) != 0 ? std::exchange(*next, *next + bytes) : nullptr;
    };
    blocks[b] = {take(kHasOpen, &open, open_slot_bytes_),
                 take(kHasSealed, &sealed, sealed_slot_bytes_),
                 take(kHasWindow, &window, window_slot_bytes_)};
  }
  Result<SeqId> seq = cache.Import(length(), blocks, exact_);
  if (!seq.ok()) return seq.status().WithContext(StrCat("'", name_, "'"));
  return seq;
}

}  // namespace tq
