// The profile that belongs to a model: a folder beside it, or inside the model's own files.
// docs/formats/profile.md says where.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/formats/gguf.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/calibrate/profile.h"

namespace tq {

// "NAME.tqprofile" beside "NAME.gguf" or the folder "NAME", whatever dots NAME has.
std::string ProfileBeside(const std::string& model_path);

struct ModelProfile {
  Profile profile;
  std::string name;   // "NAME.tqprofile", "NAME/config.json", "NAME.gguf"
  std::string place;  // "beside the model", "in its config.json", "in its metadata"
  // Another one that was found too, and is not used: the one beside a model goes before the one in
  // it.
  std::string unused;
};

// The profile of the model at `model_path` (a GGUF file or a Hugging Face folder), if there is one.
// `file`: the model as it was opened, where it was. A profile that is there and cannot be read is
// an error, that of Profile::Load, or kDataLoss: its tensors are missing or are others.
Result<std::optional<ModelProfile>> FindModelProfile(const std::string& model_path,
                                                     const GgufFile* file = nullptr);

struct WrittenProfile {
  std::string path;  // what holds the profile now
  std::vector<std::string> notes;
};

// Whether WriteProfileInto may write there, as far as that is known without a profile: its errors,
// before hours of work.
Status CheckProfileGoesInto(const std::string& model_path);

// Puts `profile` into the model. Of a folder: the key "turboquant" of config.json and a file of
// tensors beside it; every other byte stays, and the file as it was is kept as config.json.bak
// (.bak.1 ... where another file has that name). Engines that read kv_cache_quantized_layers get
// that too, where the formats can be said in it. Of a GGUF file: metadata turboquant.* in the new
// file `out_path` (empty: "NAME.turboquant.gguf", which is replaced where the model has that name),
// with all else byte for byte.
//
// kInvalidArgument: the profile is of another structure (both sides), or out_path is given for a
// folder. kUnsupported: config.json is a link, or lies in a cache of downloads that others share.
// kUnavailable: no rights, a read-only mount. kFailedPrecondition: the config says already how an
// engine quantizes the cache. Each names the folder beside the model as the way out.
Result<WrittenProfile> WriteProfileInto(const std::string& model_path, const Profile& profile,
                                        const std::string& out_path = "",
                                        const ProgressSink& progress = {});

}  // namespace tq
