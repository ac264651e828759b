// What the cache of a model takes at a length, per device: every layer kind, each head in its own
// format, blocks and windows as the allocator has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "turboquant/base/status.h"
#include "turboquant/codec/codec.h"
#include "turboquant/plan/footprint.h"
#include "turboquant/plan/model_spec.h"

namespace tq {

// How a cache is stored: one format for all heads, or one a layer and KV head (layer-major, over
// layers of kind kFull and kWindow). Under one format window layers stay in 16 bit: they are
// bounded, and what they lose is not measured. A latent is stored as two halves in the format of K,
// its rotary part in 16 bit.
struct CacheFormat {
  std::string name = "f16";
  std::vector<HeadFormat> formats = {HeadFormat{}};
  CacheWindow window;

  static Result<CacheFormat> FromPreset(const std::string& preset, const CacheWindow& window);
};

// Bytes of one sequence on one device, as allocated.
struct CacheParts {
  size_t payload = 0;    // codes of sealed blocks
  size_t scales = 0;     // scales and side information of sealed blocks
  size_t recent = 0;     // open blocks of the window and for rollback
  size_t sinks = 0;      // open blocks of the first tokens
  size_t windows = 0;    // sliding-window layers
  size_t states = 0;     // linear and recurrent layers
  size_t tables = 0;     // of centred keys; one for all sequences
  size_t in_flight = 0;  // more than that while tokens are appended
  size_t total() const {
    return payload + scales + recent + sinks + windows + states + tables + in_flight;
  }
};

class CachePlan {
 public:
  // kInvalidArgument when formats and layers do not agree, or heads and devices.
  static Result<CachePlan> Create(const ModelSpec& spec, const CacheFormat& format,
                                  int num_devices = 1);

  // What one sequence holds at `tokens` tokens, read in chunks of chunk_len; on the device that
  // holds the most.
  CacheParts At(int64_t tokens, int chunk_len) const;
  // The part of At(tokens) that a second sequence with the same first `prefix` tokens shares: whole
  // blocks, sealed or sinks.
  CacheParts Shared(int64_t prefix, int64_t tokens) const;
  // Bytes of an open block's row on that device, over all layers that keep every token.
  double OpenRowBytes() const { return static_cast<double>(block_.open) / kPageLen; }
  // Bytes that a decode step reads of one sequence on that device.
  double ReadBytes(int64_t tokens) const;
  // A plain 16-bit cache on that device: no blocks, no window of ours.
  size_t F16Bytes(int64_t tokens) const;
  // Of sealed blocks of quantizable layers; 0 when there are none.
  double bits_per_value() const;
  // Layers whose cache is stored in the format, of those that keep tokens.
  int quantized_layers() const { return quantized_layers_; }
  // Values of one token in quantizable layers, on all devices.
  int64_t values_per_token() const { return values_; }

 private:
  CacheWindow window_;
  BlockBytes block_;  // full and latent layers
  // Sliding-window layers: per window length, bytes of a block, and of a token in plain 16 bit.
  struct Windowed {
    int window = 0;
    size_t block_bytes = 0, f16_token_bytes = 0;
  };
  std::vector<Windowed> windowed_;
  size_t states_ = 0;
  size_t f16_token_bytes_ = 0;  // of layers that keep every token
  int num_center_freq_ = 0;
  int quantized_layers_ = 0;
  int64_t values_ = 0;
  size_t sealed_all_ = 0;  // a sealed block over all devices, padding of replicas not counted
};

}  // namespace tq
