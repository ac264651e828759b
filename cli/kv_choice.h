// From --kv, --pin, --recent-len and --sink-len to the configuration of a cache, with the reason
// for every head's format.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/formats/gguf.h"
#include "turboquant/base/status.h"
#include "turboquant/cache/cache.h"
#include "turboquant/calibrate/text_sketch.h"

namespace tq::cli {

struct KvFlags {
  std::string kv = "auto";                  // preset, profile folder or auto
  std::string pin;                          // "1,10=k8v4;3:0=k4v4"
  std::optional<int> recent_len, sink_len;  // none: the profile's or the default
  std::string v_skip;                       // "0.01"; empty or "0": off
  void Add(CLI::App* app);
  void AddWindow(CLI::App* app);  // --recent-len and --sink-len only
  void AddVSkip(CLI::App* app);
  // "--kv k4v4 --pin 1=k8v4 --recent-len 64": what makes the same cache again.
  std::string CommandLine() const;
  Status ValidateWindow() const;  // CheckWindow of its two
};

// --recent-len and --sink-len, as far as given. kInvalidArgument: outside what any cache can have.
Status CheckWindow(std::optional<int> recent_len, std::optional<int> sink_len);

// The number of --v-skip. kInvalidArgument: it is none, or outside [0, 1).
Result<float> ParseVSkip(const std::string& text);

// The model that a cache is for.
struct KvModel {
  CacheConfig base;  // Model::MakeCacheConfig()
  std::string path;  // NAME.gguf or a folder NAME; its profile is NAME.tqprofile, or inside
  uint64_t structure_hash = 0;
  std::function<uint64_t()> weights_hash;  // reads all weights; only asked when a profile has one
  const GgufFile* file = nullptr;          // what is at `path`, where it is open
};

struct KvChoice {
  std::string name;  // "k8v4", "NAME.tqprofile", "k3v2 + pins"
  CacheConfig config;
  std::vector<std::string> reasons;  // [layers * heads]: "--kv k8v4", "--pin 1,10=k8v4"
  std::vector<std::string> notes;    // for stderr
  bool verified = false;             // by the quality block of a profile of these weights
  TextSketch calibrated_on;          // of a profile, if it says
  bool quantizes = false;            // fewer than 16 bits are asked for, if not by a window layer
};

// Contexts from which quantizing pays: below, most of the cache is window.
inline constexpr int64_t kMinAutoContext = 1024;

// What can be said about a word of --kv before any model is read.
Status CheckKvName(const std::string& kv);

// kInvalidArgument and kUnsupported name the word that is wrong and what would be right.
Result<KvChoice> ChooseKv(const KvModel& model, const KvFlags& flags, int64_t context);

// One preset for all heads, with the centres that `base` has; window flags applied.
Result<KvChoice> UniformKv(const KvModel& model, const std::string& preset, const KvFlags& flags);

// Overrides formats, later pins win. Targets are layers or ranges, with ":head" or ":head-head".
Status ApplyPins(const std::string& pins, KvChoice* choice);

// "NAME.tqprofile" of a path that may end in a slash.
std::string ProfileName(const std::string& path);

// Layers of which some head is stored in fewer than 16 bits.
int NumQuantizedLayers(const CacheConfig& config);
// "applied to 5 of 26 layers; 21 window layers kept in 16 bit"; empty without sliding windows.
std::string DescribeWindows(const CacheConfig& config);
// Bits of a value of one head, everything counted: of sealed blocks, or of the rows of a window.
double HeadBitsPerValue(const CacheConfig& config, size_t head);

// A line for each run of layers that share formats and reasons.
std::string ExplainKv(const KvChoice& choice);

}  // namespace tq::cli
