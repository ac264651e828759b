#include "runtime/model/model_profile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/formats/gguf_writer.h"
#include "runtime/formats/json_member.h"
#include "runtime/model/model.h"
#include "turboquant/base/file.h"
#include "turboquant/base/json_object.h"
#include "turboquant/base/numeric.h"
#include "turboquant/base/safetensors.h"
#include "turboquant/calibrate/profile_tensors.h"

namespace tq {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kKey[] = "turboquant", kEngineKey[] = "quantization_config";
constexpr char kJsonOfGguf[] = "turboquant.profile", kTensorsOfGguf[] = "turboquant.tensors";

std::string Hex(uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

// The bytes of a profile's tensors.safetensors; empty: it has none.
Result<std::string> TensorBytes(const Profile& profile) {
  std::vector<SafetensorsSource> sources;
  AddTensors(profile, &sources);
  if (sources.empty()) return std::string();
  return SerializeSafetensors(sources);
}

std::string FileName(const std::string& path) {
  fs::path p(path);
  return (p.has_filename() ? p : p.parent_path()).filename().string();
}

// --- Hugging Face folders -----------------------------------------------------------------------

// The name of the tensors' file that a "turboquant" object speaks of; empty: none. A name is no
// path.
std::string TensorsFile(const Json& root) {
  if (!root.contains(kKey) || !root[kKey].is_object()) return "";
  const Json& profile = root[kKey];
  if (!profile.contains("tensors") || !profile["tensors"].is_object()) return "";
  const Json& tensors = profile["tensors"];
  if (!tensors.contains("file") || !tensors["file"].is_string()) return "";
  const std::string name = tensors["file"].get<std::string>();
  return name.find('/') == std::string::npos && name.find('\\') == std::string::npos ? name : "";
}

Result<std::optional<Profile>> ProfileInConfig(const std::string& folder) {
  const std::string path = folder + "/config.json";
  if (!FileExists(path)) return std::optional<Profile>();
  TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const Result<Json> root = ParseJson<Json>(text, path);
  // Who loads the model says what is wrong with it.
  if (!root.ok() || !root->is_object() || !root->contains(kKey)) return std::optional<Profile>();
  std::string tensors;
  const bool has_tensors = (*root)[kKey].is_object() && (*root)[kKey].contains("tensors");
  Json alone = {{kKey, (*root)[kKey]}};
  if (has_tensors) {
    const std::string name = TensorsFile(*root);
    const Json hash = alone[kKey]["tensors"].is_object() && alone[kKey]["tensors"].contains("xxh3")
                          ? alone[kKey]["tensors"]["xxh3"]
                          : Json();
    if (name.empty() || !hash.is_string()) {
      return DataLoss("'", path, "': ", kKey, ".tensors does not name a file and its xxh3");
    }
    const std::string file = folder + "/" + name;
    if (!FileExists(file)) {
      return DataLoss("'", file, "' is missing, which the profile in '", path,
                      "' names; copy it beside, or calibrate again");
    }
    TQ_ASSIGN_OR_RETURN(tensors, ReadFile(file));
    const std::string found = Hex(Hash64(tensors.data(), tensors.size()));
    if (found != hash.get<std::string>()) {
      return DataLoss("'", file, "' has xxh3 ", found, ", and the profile in '", path,
                      "' asks for ", hash.get<std::string>(),
                      "; copy the right one, or calibrate again");
    }
    alone[kKey].erase("tensors");
  }
  TQ_ASSIGN_OR_RETURN(Profile profile, Profile::Parse(alone.dump(), tensors, path));
  return std::optional<Profile>(std::move(profile));
}

// Per layer, what engines that read kv_cache_quantized_layers can do: 8-bit floats or 16 bits.
// Null: the profile says more than that.
Json EngineConfig(const Profile& profile) {
  Json layers = Json::object();
  const int heads = profile.model.num_kv_heads;
  for (int layer = 0; layer < profile.model.num_layers; ++layer) {
    const HeadFormat& first = profile.formats[static_cast<size_t>(layer) * heads];
    for (int h = 0; h < heads; ++h) {
      const HeadFormat& f = profile.formats[static_cast<size_t>(layer) * heads + h];
      const bool plain = f.k.bits == 16 && f.v.bits == 16;
      const bool fp8 = f.k.is_float() && f.v.is_float() && f.k.bits == 8 && f.v.bits == 8;
      if ((!plain && !fp8) || f.k.bits != first.k.bits || f.k.center != Center::kNone) return {};
    }
    if (first.k.bits == 8) {
      layers[StrCat("model.layers.", layer, ".self_attn")] = {{"quant_algo", "FP8"}};
    }
  }
  if (layers.empty()) return {};
  const bool all = layers.size() == static_cast<size_t>(profile.model.num_layers);
  return {{"quant_method", "modelopt"},
          {"producer", {{"name", "turboquant"}}},
          {"kv_cache_quant_algo", all ? "FP8" : "MIXED_PRECISION"},
          {"kv_cache_quantized_layers", layers},
          {"kv_cache_schema_version", 1}};
}

bool IsOurEngineConfig(const Json& root) {
  if (!root.contains(kEngineKey) || !root[kEngineKey].is_object()) return false;
  const Json& producer = root[kEngineKey].value("producer", Json::object());
  return producer.is_object() && producer.value("name", Json()) == Json("turboquant");
}

Status CheckRights(const std::string& folder, const std::string& way_out) {
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return OkStatus();
  return Unavailable("cannot write into '", folder, "': ", std::strerror(errno), "; ", way_out);
}

Status CheckFolder(const std::string& folder, const std::string& config,
                   const std::string& way_out) {
  struct stat st {};
  if (::lstat(config.c_str(), &st) != 0) return NotFound("there is no '", config, "'");
  if (S_ISLNK(st.st_mode)) {
    std::error_code error;
    const fs::path target = fs::read_symlink(config, error);
    return Unsupported("'", config, "' is a link to '", target.string(),
                       "', which others may share, and is not changed; ", way_out);
  }
  // The same cache on file systems without links.
  std::error_code error;
  bool in_cache = false;
  for (const fs::path& part : fs::weakly_canonical(folder, error)) {
    if (in_cache && part == "snapshots") {
      return Unsupported("'", folder,
                         "' lies in a cache of downloads that others share, and is not "
                         "changed; ",
                         way_out);
    }
    in_cache |= part.string().starts_with("models--");
  }
  return CheckRights(folder, way_out);
}

// A config without what a profile puts into it.
Json WithoutProfile(Json root) {
  if (!root.is_object()) return root;
  if (IsOurEngineConfig(root)) root.erase(kEngineKey);
  root.erase(kKey);
  return root;
}

struct Backup {
  std::string path;
  bool exists = false;  // and holds the file as it was before this program changed it
};

// Where the config `before` is kept: config.json.bak, or with the first number that is free. A file
// with other contents is somebody else's and stays.
Backup BackupOf(const std::string& config, const std::string& before, const Json& root) {
  Backup out;
  out.path = config + ".bak";
  for (int number = 1; FileExists(out.path); ++number) {
    const Result<std::string> text = ReadFile(out.path);
    if (text.ok() && *text == before) return {out.path, true};
    if (text.ok() && root.contains(kKey)) {
      const Result<Json> kept = ParseJson<Json>(*text, out.path);
      if (kept.ok() && WithoutProfile(*kept) == WithoutProfile(root)) return {out.path, true};
    }
    out.path = StrCat(config, ".bak.", number);
  }
  return out;
}

// Whether a backup of config.json, or another copy beside it, needs this file of tensors.
bool IsNamedByACopy(const std::string& folder, const std::string& tensors_name) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (!it->path().filename().string().starts_with("config.json.")) continue;
    const Result<std::string> text = ReadFile(it->path().string());
    if (text.ok() && text->find(tensors_name) != std::string::npos) return true;
  }
  return false;
}

Result<WrittenProfile> WriteIntoFolder(const std::string& folder, const Profile& profile,
                                       const std::string& way_out) {
  WrittenProfile out;
  out.path = folder + "/config.json";
  TQ_RETURN_IF_ERROR(CheckFolder(folder, out.path, way_out));
  TQ_ASSIGN_OR_RETURN(const std::string before, ReadFile(out.path));
  TQ_ASSIGN_OR_RETURN(const Json root, ParseJson<Json>(before, out.path));
  Json content = Json::parse(profile.ToJson())[kKey];
  TQ_ASSIGN_OR_RETURN(const std::string tensors, TensorBytes(profile));
  std::string tensors_name;
  if (!tensors.empty()) {
    const std::string hash = Hex(Hash64(tensors.data(), tensors.size()));
    // Not .safetensors: some engines read all of these as weights.
    tensors_name = "turboquant-" + hash + ".tensors";
    content["tensors"] = {{"file", tensors_name}, {"xxh3", hash}};
  }
  TQ_ASSIGN_OR_RETURN(std::string after, WithJsonMember(before, kKey, content.dump(2)));
  const Json engine = EngineConfig(profile);
  const bool ours = IsOurEngineConfig(root);
  if (!engine.is_null() && root.contains(kEngineKey) && !ours) {
    out.notes.push_back(StrCat("kv_cache_quantized_layers is not written: '", out.path, "' has a ",
                               kEngineKey, " of its own"));
  } else if (!engine.is_null() || ours) {
    TQ_ASSIGN_OR_RETURN(
        after, WithJsonMember(
                   after, kEngineKey,
                   engine.is_null() ? std::nullopt : std::optional<std::string>(engine.dump(2))));
    if (!engine.is_null()) out.notes.push_back("kv_cache_quantized_layers is written too");
  }

  // Tensors first: until config.json is replaced, nothing names them.
  if (!tensors.empty()) {
    TQ_RETURN_IF_ERROR(WriteFileAtomic(folder + "/" + tensors_name, tensors).WithContext(way_out));
  }
  const auto [backup, exists] = BackupOf(out.path, before, root);
  if (!exists) TQ_RETURN_IF_ERROR(WriteFileAtomic(backup, before).WithContext(way_out));
  std::error_code error;
  const fs::perms mode = fs::status(out.path, error).permissions();
  TQ_RETURN_IF_ERROR(WriteFileAtomic(out.path, after).WithContext(way_out));
  if (!error) fs::permissions(out.path, mode, error);
  if (!exists) out.notes.push_back("the file as it was is kept as " + backup);
  const std::string old = TensorsFile(root);
  if (!old.empty() && old != tensors_name && old.starts_with("turboquant-") &&
      old.ends_with(".tensors") && !IsNamedByACopy(folder, old)) {
    fs::remove(fs::path(folder) / old, error);
  }
  return out;
}

// --- GGUF files ---------------------------------------------------------------------------------

Result<std::optional<Profile>> ProfileInGguf(const GgufFile& file) {
  if (!file.Has(kJsonOfGguf)) return std::optional<Profile>();
  TQ_ASSIGN_OR_RETURN(const std::string json, file.GetString(kJsonOfGguf));
  std::string tensors;
  for (const GgufRawValue& value : file.raw_metadata()) {
    if (value.key != kTensorsOfGguf) continue;
    constexpr size_t kHead = 4 + 8;  // type and number of the elements
    uint32_t type = 0;
    if (value.bytes.size() >= kHead) std::memcpy(&type, value.bytes.data(), sizeof type);
    if (value.type != GgufType::kArray || value.bytes.size() < kHead ||
        static_cast<GgufType>(type) != GgufType::kU8) {
      return DataLoss("'", file.path(), "': ", kTensorsOfGguf, " is no array of bytes");
    }
    tensors.assign(reinterpret_cast<const char*>(value.bytes.data()) + kHead,
                   value.bytes.size() - kHead);
  }
  TQ_ASSIGN_OR_RETURN(Profile profile, Profile::Parse(json, tensors, file.path()));
  return std::optional<Profile>(std::move(profile));
}

// The file with a profile that is made of this one: a copy, or the one that is such a copy already.
std::string GgufWithProfile(std::string path) {
  if (path.ends_with(".turboquant.gguf")) return path;
  if (path.ends_with(".gguf")) path.resize(path.size() - std::string_view(".gguf").size());
  return path + ".turboquant.gguf";
}

Result<WrittenProfile> WriteIntoGguf(const GgufFile& file, const Profile& profile,
                                     const std::string& out_path, const std::string& way_out,
                                     const ProgressSink& progress) {
  WrittenProfile out;
  out.path = out_path.empty() ? GgufWithProfile(file.path()) : out_path;
  GgufMetadata metadata = GgufMetadata::Of(file);
  metadata.Text("turboquant.version", StrCat(kProfileMajor, ".", kProfileMinor));
  metadata.Text(kJsonOfGguf, profile.ToJson());
  TQ_ASSIGN_OR_RETURN(const std::string tensors, TensorBytes(profile));
  if (tensors.empty()) {
    metadata.Remove(kTensorsOfGguf);
  } else {
    metadata.U8s(kTensorsOfGguf,
                 {reinterpret_cast<const uint8_t*>(tensors.data()), tensors.size()});
  }
  TQ_RETURN_IF_ERROR(CopyGguf(file, metadata, out.path, progress).WithContext(way_out));
  return out;
}

bool IsCopy(const Profile& a, const Profile& b) {
  const auto left = TensorBytes(a), right = TensorBytes(b);
  return a.ToJson() == b.ToJson() && left.ok() && right.ok() && *left == *right;
}

std::string WayOut(const std::string& model_path) {
  return "keep the profile beside the model, as '" + ProfileBeside(model_path) +
         "', where it is found as well";
}

}  // namespace

std::string ProfileBeside(const std::string& model_path) {
  std::string name = model_path;
  if (IsDirectory(model_path)) {
    fs::path folder(model_path);
    // "." and ".." have a name only from the root.
    const std::string last = folder.has_filename() ? folder.filename().string()
                                                   : folder.parent_path().filename().string();
    if (last == "." || last == "..") folder = fs::absolute(folder).lexically_normal();
    name = folder.string();
    while (name.size() > 1 && name.back() == '/') name.pop_back();
  } else if (name.ends_with(".gguf")) {
    name.resize(name.size() - std::string_view(".gguf").size());
  }
  return name + ".tqprofile";
}

Result<std::optional<ModelProfile>> FindModelProfile(const std::string& model_path,
                                                     const GgufFile* file) {
  std::optional<Profile> inside;
  const bool is_folder = IsDirectory(model_path);
  const std::string beside = ProfileBeside(model_path);
  const bool has_beside = FileExists(beside);
  Result<std::optional<Profile>> found = std::optional<Profile>();
  if (is_folder) {
    found = ProfileInConfig(model_path);
  } else if (file != nullptr) {
    found = ProfileInGguf(*file);
  } else if (FileExists(model_path)) {
    const Result<GgufFile> opened = GgufFile::Open(model_path);
    if (opened.ok()) found = ProfileInGguf(*opened);
  }
  const std::string place = is_folder ? "in its config.json" : "in its metadata";
  if (has_beside) {
    ModelProfile out;
    TQ_ASSIGN_OR_RETURN(out.profile, Profile::Load(beside));
    out.name = FileName(beside);
    out.place = "beside the model";
    // A copy, as --write-into leaves it, is not worth a word.
    if (!found.ok() || (found->has_value() && !IsCopy(**found, out.profile))) out.unused = place;
    return std::optional<ModelProfile>(std::move(out));
  }
  TQ_RETURN_IF_ERROR(found.status());
  if (!found->has_value()) return std::optional<ModelProfile>();
  ModelProfile out;
  out.profile = *std::move(*found);
  out.name = FileName(model_path) + (is_folder ? "/config.json" : "");
  out.place = place;
  return std::optional<ModelProfile>(std::move(out));
}

Status CheckProfileGoesInto(const std::string& model_path) {
  const std::string way_out = WayOut(model_path);
  if (IsDirectory(model_path)) {
    return CheckFolder(model_path, model_path + "/config.json", way_out);
  }
  const fs::path folder = fs::path(GgufWithProfile(model_path)).parent_path();
  return CheckRights(folder.empty() ? "." : folder.string(), way_out);
}

Result<WrittenProfile> WriteProfileInto(const std::string& model_path, const Profile& profile,
                                        const std::string& out_path, const ProgressSink& progress) {
  const std::string way_out = WayOut(model_path);
  if (IsDirectory(model_path) && !out_path.empty()) {
    return InvalidArgument("'", model_path, "' is a folder, whose config.json is changed; '",
                           out_path, "' goes with a GGUF file");
  }
  TQ_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model_path));
  const uint64_t structure = StructureHashOf(file);
  if (profile.model.structure_hash && *profile.model.structure_hash != structure) {
    return InvalidArgument("the profile was made for '", profile.model.name, "' of structure ",
                           Hex(*profile.model.structure_hash), "; '", model_path,
                           "' has structure ", Hex(structure), "; calibrate this model");
  }
  if (IsDirectory(model_path)) return WriteIntoFolder(model_path, profile, way_out);
  return WriteIntoGguf(file, profile, out_path, way_out, progress);
}

}  // namespace tq
