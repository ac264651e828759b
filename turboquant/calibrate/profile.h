// A profile: which format each layer and KV head of one model gets, with the means that centre K.
//
// A folder NAME.tqprofile with profile.json and, where it has tensors, tensors.safetensors.
// docs/formats/profile.md is the format in words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/cache/cache.h"
#include "turboquant/calibrate/text_sketch.h"
#include "turboquant/codec/codec.h"

namespace tq {

inline constexpr int kProfileMajor = 1;
inline constexpr int kProfileMinor = 0;

// What a profile was made for; what a model must match.
struct ProfileModel {
  std::string name, architecture;
  std::optional<uint64_t> structure_hash, weights_hash;
  int num_layers = 0, num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
};

// How the formats were found; for people, nothing depends on it.
struct ProfileCalibration {
  std::optional<uint64_t> corpus_hash;
  int64_t sequences = 0, tokens = 0, context_len = 0;
  std::string objective;   // "kld", "cosine"
  double budget_bits = 0;  // 0: none was given
  double target_kld = 0;   // 0: none was given
  std::string date;        // "2026-11-30"
  TextSketch text = {};    // of the windows that were read; none in profiles of old
};

// Quality as measured when the profile was made; absent in a profile that was not verified.
struct ProfileQuality {
  int64_t held_out_tokens = 0, windows = 0;
  double kld_mean = 0, kld_stderr = 0, kld_p99 = 0;  // stderr: of positions or windows
  double floor_kld_mean = 0;                         // of k8v8
  double same_top = 0, ppl_ratio = 0;
  double gate_kld_mean = 0;  // the most that was allowed; 0: nothing was asked for
  std::string device;        // "cpu, avx2"
  bool passed = false;
};

// What the formats were chosen by: mean KL with one head's K, or V, at `bits` and all else kept;
// [num_layers * num_kv_heads], or [num_layers] where heads were not told apart.
struct ProfileSensitivity {
  int bits = 2;
  std::vector<double> k, v;
};

struct Profile {
  ProfileModel model;
  int recent_len = 256;
  int sink_len = 4;
  RecentType recent = RecentType::kQ8;
  uint64_t seed = 0;
  std::vector<HeadFormat> formats;  // [num_layers * num_kv_heads], layer-major
  // Means of K before RoPE in Hugging Face order, [num_layers * num_kv_heads][head_dim]; empty:
  // none.
  std::vector<std::vector<float>> k_means;
  // What calibrated axes and anchors need, [num_layers * num_kv_heads]; empty: none.
  std::vector<HeadTensors> tensors;
  std::optional<ProfileCalibration> calibration;
  std::optional<ProfileQuality> quality;
  std::optional<ProfileSensitivity> sensitivity;
  // (context, bits per value with window and sinks counted)
  std::vector<std::pair<int64_t, double>> bits_all_counted;
  std::vector<std::string> notes;  // fields that were ignored, for the caller to show

  // kNotFound, kDataLoss (not JSON, damaged tensors), kInvalidArgument (a field with a wrong type,
  // a number out of range, an index beyond the model), kUnsupported (a newer major version, an axis
  // value without a kernel). The message names the file and the field.
  static Result<Profile> Load(const std::string& folder);
  // The same from the text of profile.json; `tensors` is its tensors.safetensors or empty.
  static Result<Profile> Parse(std::string_view json, std::string_view tensors,
                               const std::string& name);
  // Writes the folder; each file is complete or not there.
  Status Save(const std::string& folder) const;
  std::string ToJson() const;
  // Puts `quality` into the profile.json of `folder`; every other field stays, unknown ones too.
  // The errors of Load: what it cannot read is left alone.
  static Status SaveQuality(const std::string& folder, const ProfileQuality& quality);

  // Sets formats, window, seed and centres of *config, whose shapes and RoPE are the model's.
  // kInvalidArgument names both sides when the structure differs. weights_hash 0 = unknown; a
  // profile made for other weights of the same structure is used and *note says so.
  Status Apply(uint64_t structure_hash, uint64_t weights_hash, CacheConfig* config,
               std::string* note) const;

  // "30 layers x 3 KV heads: 84 k3v2, 6 k4v4; centred K; window 256, sinks 4".
  std::string Describe() const;
};

}  // namespace tq
