#include "cli/kv_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <utility>

#include "cli/common.h"
#include "runtime/model/model_profile.h"
#include "turboquant/attention/attention.h"
#include "turboquant/base/file.h"
#include "turboquant/base/numeric.h"
#include "turboquant/calibrate/head_selection.h"
#include "turboquant/calibrate/profile.h"
#include "turboquant/codec/record_layout.h"

namespace tq::cli {
namespace {

constexpr char kPinForm[] =
    "; a pin is LAYERS[:HEADS]=PRESET, e.g. \"1,10=k8v4;3:0=k4v4;20-29=k3v2\"";

bool IsProfilePath(const std::string& kv) {
  return IsDirectory(kv) || std::filesystem::path(kv).extension() == ".tqprofile" ||
         kv.find('/') != std::string::npos;
}

bool IsQuantized(const HeadFormat& f) {
  return f.k.bits < 16 || f.v.bits < 16;
}

// Centres apply to the keys of every format that is quantized; rows of a sliding window need none.
HeadFormat WithCenterOf(HeadFormat format, const CacheConfig& config, int layer) {
  if (!config.centers.empty() && !format.k.is_float() && config.window(layer) == 0) {
    format.k = WithCenter(format.k, Center::kRopeMean);
  }
  return format;
}

Status ApplyWindow(const KvFlags& flags, KvChoice* choice) {
  TQ_RETURN_IF_ERROR(flags.ValidateWindow());
  const auto apply = [&](const char* flag, std::optional<int> value, int* target) {
    if (!value) return;
    *target = *value;
    if (*value % kPageLen != 0) {
      choice->notes.push_back(fmt::format("{} {}: rounded up to {}, whole blocks of {} tokens",
                                          flag, *value, RoundUp(*value, kPageLen), kPageLen));
    }
  };
  apply("--recent-len", flags.recent_len, &choice->config.recent_len);
  apply("--sink-len", flags.sink_len, &choice->config.sink_len);
  return OkStatus();
}

Status ApplyPin(const std::string& pin, KvChoice* choice) {
  CacheConfig& config = choice->config;
  const std::string where = StrCat("--pin '", pin, "'");
  const size_t equals = pin.find('=');
  if (equals == std::string::npos) return InvalidArgument(where, " has no '='", kPinForm);
  Result<HeadFormat> parsed = ParsePreset(SplitList(pin.substr(equals + 1), '\0').front());
  if (!parsed.ok()) return parsed.status().WithContext(where);
  const auto heads = ParseHeadSelection(std::string_view(pin).substr(0, equals), config.num_layers,
                                        config.num_kv_heads);
  if (!heads.ok()) return heads.status().WithContext(where);
  for (const auto& [layer, head] : *heads) {
    const size_t i = static_cast<size_t>(layer) * config.num_kv_heads + head;
    config.formats[i] = WithCenterOf(*parsed, config, layer);
    choice->reasons[i] = StrCat("--pin ", pin);
  }
  choice->quantizes |= IsQuantized(*parsed);
  return OkStatus();
}

// A profile's formats, window and centres; flags and pins go over them.
Result<KvChoice> FromProfile(const KvModel& model, const Profile& profile, const std::string& name,
                             const KvFlags& flags, const std::string& how) {
  KvChoice choice;
  choice.name = name;
  choice.quantizes = std::any_of(profile.formats.begin(), profile.formats.end(), IsQuantized);
  choice.config = model.base;
  const bool hashed = profile.model.weights_hash.has_value() && model.weights_hash != nullptr;
  std::string note;
  const Status applied =
      profile.Apply(model.structure_hash, hashed ? model.weights_hash() : 0, &choice.config, &note);
  if (!applied.ok()) return applied.WithContext("'" + name + "'");
  choice.reasons.assign(choice.config.formats.size(), choice.name);
  choice.notes.push_back(fmt::format("kv: {} ({}): {}", choice.name, how, profile.Describe()));
  for (const std::string& ignored : profile.notes) {
    choice.notes.push_back(choice.name + ": " + ignored);
  }
  if (!note.empty()) choice.notes.push_back(choice.name + ": " + note);
  if (profile.quality && !profile.quality->passed) {
    choice.notes.push_back(choice.name + ": it did not pass its own quality gate");
  }
  if (profile.calibration) choice.calibrated_on = profile.calibration->text;
  choice.verified = note.empty() && profile.quality && profile.quality->passed;
  TQ_RETURN_IF_ERROR(ApplyWindow(flags, &choice));
  return choice;
}

// Keys below 4 bits are only sure to be good enough where somebody measured them.
void WarnAboutLowKeys(KvChoice* choice) {
  if (choice->verified) return;
  for (const HeadFormat& f : choice->config.formats) {
    if (f.k.bits >= 4) continue;
    choice->notes.push_back(fmt::format(
        "{}: keys below 4 bits are not verified for this model; `tq compare` measures what they "
        "cost",
        choice->name));
    return;
  }
}

std::string FormatName(const HeadFormat& f) {
  return PresetName(f) + (f.k.center == Center::kRopeMean ? " centred" : "");
}

}  // namespace

void KvFlags::Add(CLI::App* app) {
  app->add_option(
      "--kv", kv,
      "Format of the cache: f16, k8v4, k4v4, k3v2, any k<a>v<b>, a profile folder, or auto");
  app->add_option("--pin", pin,
                  "Other formats for some layers or layer:head, \"1,10=k8v4;3:0=k4v4\"")
      ->capture_default_str();
  AddWindow(app);
}

void KvFlags::AddVSkip(CLI::App* app) {
  app->add_option("--v-skip", v_skip,
                  fmt::format("Leave the values of old blocks of 64 tokens unread whose attention "
                              "is at most this share of that of the recent tokens and sinks (off "
                              "unless given; without a number {}: docs/reference/quality.md has "
                              "what each costs)",
                              kDefaultVSkip))
      ->type_name("EPS")
      ->expected(0, 1)
      ->default_str(fmt::format("{}", kDefaultVSkip));
}

void KvFlags::AddWindow(CLI::App* app) {
  app->add_option("--recent-len", recent_len,
                  "Recent tokens kept at 8 bit (default 256), in blocks of 64")
      ->type_name("N");
  app->add_option("--sink-len", sink_len, "First tokens kept at 8 bit (default 4), in blocks of 64")
      ->type_name("N");
}

std::string KvFlags::CommandLine() const {
  std::string out = "--kv " + ShellWord(kv);
  if (!pin.empty()) out += " --pin " + ShellWord(pin);
  if (recent_len) out += fmt::format(" --recent-len {}", *recent_len);
  if (sink_len) out += fmt::format(" --sink-len {}", *sink_len);
  if (!v_skip.empty()) out += " --v-skip=" + v_skip;
  return out;
}

Status KvFlags::ValidateWindow() const {
  return CheckWindow(recent_len, sink_len);
}

Status CheckWindow(std::optional<int> recent_len, std::optional<int> sink_len) {
  constexpr int kMost = 1 << 24;
  for (const auto& [flag, value] :
       {std::pair("--recent-len", recent_len), std::pair("--sink-len", sink_len)}) {
    if (value && (*value < 0 || *value > kMost)) {
      return InvalidArgument(flag, " ", *value, " is outside 0..", kMost);
    }
  }
  return OkStatus();
}

Result<float> ParseVSkip(const std::string& text) {
  if (text.empty()) return 0.f;
  float value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && rest == end && value >= 0 && value < 1) return value;
  return InvalidArgument("--v-skip '", text, "' is no number from 0 (off) to below 1, e.g. ",
                         kDefaultVSkip);
}

Status CheckKvName(const std::string& kv) {
  if (kv == "auto") return OkStatus();
  const Status status = IsProfilePath(kv) ? Profile::Load(kv).status() : ParsePreset(kv).status();
  return status.WithContext("--kv");
}

std::string ProfileName(const std::string& path) {
  std::filesystem::path folder(path);
  if (!folder.has_filename()) folder = folder.parent_path();
  return folder.filename().string();
}

Status ApplyPins(const std::string& pins, KvChoice* choice) {
  if (pins.empty()) return OkStatus();
  for (const std::string& pin : SplitList(pins, ';')) {
    if (pin.empty()) continue;
    TQ_RETURN_IF_ERROR(ApplyPin(pin, choice));
  }
  choice->name += " + pins";
  choice->verified = false;
  return OkStatus();
}

Result<KvChoice> UniformKv(const KvModel& model, const std::string& preset, const KvFlags& flags) {
  TQ_ASSIGN_OR_RETURN(const HeadFormat format, ParsePreset(preset));
  KvChoice choice;
  choice.config = model.base;
  choice.name = PresetName(format);
  choice.quantizes = IsQuantized(format);
  const size_t heads = static_cast<size_t>(model.base.num_layers) * model.base.num_kv_heads;
  for (size_t i = 0; i < heads; ++i) {
    const int layer = static_cast<int>(i) / model.base.num_kv_heads;
    const int window = model.base.window(layer);
    // Windows are short and the same at every context: there is little to gain, and what it costs
    // is not measured.
    if (window == 0) choice.config.formats[i] = WithCenterOf(format, model.base, layer);
    choice.reasons.push_back(
        window == 0 ? "--kv " + choice.name
                    : fmt::format("sliding window of {}: kept in 16 bit", FormatCount(window)));
  }
  TQ_RETURN_IF_ERROR(ApplyWindow(flags, &choice));
  return choice;
}

Result<KvChoice> ChooseKv(const KvModel& model, const KvFlags& flags, int64_t context) {
  const auto choose = [&]() -> Result<KvChoice> {
    if (flags.kv != "auto") {
      if (!IsProfilePath(flags.kv)) return UniformKv(model, flags.kv, flags);
      TQ_ASSIGN_OR_RETURN(const Profile profile, Profile::Load(flags.kv));
      return FromProfile(model, profile, ProfileName(flags.kv), flags, "--kv");
    }
    TQ_ASSIGN_OR_RETURN(const std::optional<ModelProfile> found,
                        FindModelProfile(model.path, model.file));
    if (found) {
      TQ_ASSIGN_OR_RETURN(KvChoice choice, FromProfile(model, found->profile, found->name, flags,
                                                       "auto: " + found->place));
      if (!found->unused.empty()) {
        choice.notes.push_back(
            fmt::format("kv: there is a profile {} too, which is not used", found->unused));
      }
      return choice;
    }
    const bool pays = context >= kMinAutoContext;
    TQ_ASSIGN_OR_RETURN(KvChoice choice, UniformKv(model, pays ? "k8v4" : "f16", flags));
    const std::string why =
        pays ? fmt::format("no {} beside the model, and contexts from {} on gain from it",
                           ProfileName(ProfileBeside(model.path)), FormatCount(kMinAutoContext))
             : fmt::format("a context of {} is mostly recent window: nothing to gain below {}",
                           FormatCount(context), FormatCount(kMinAutoContext));
    for (std::string& reason : choice.reasons) {
      if (reason == "--kv " + choice.name) reason = "--kv auto";
    }
    choice.notes.insert(choice.notes.begin(), fmt::format("kv: {} (auto: {})", choice.name, why));
    return choice;
  };
  TQ_ASSIGN_OR_RETURN(KvChoice choice, choose());
  TQ_RETURN_IF_ERROR(ApplyPins(flags.pin, &choice));
  TQ_ASSIGN_OR_RETURN(choice.config.v_skip, ParseVSkip(flags.v_skip));
  if (choice.config.v_skip > 0) choice.name += fmt::format(" v-skip {}", choice.config.v_skip);
  // A pin or a profile may ask a layer with a window for what it cannot have.
  TQ_RETURN_IF_ERROR(choice.config.Validate());
  const std::string windows = DescribeWindows(choice.config);
  if (choice.quantizes && !windows.empty()) {
    choice.notes.push_back(fmt::format("kv: {} {}", choice.name, windows));
  }
  WarnAboutLowKeys(&choice);
  return choice;
}

int NumQuantizedLayers(const CacheConfig& config) {
  int layers = 0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto first = config.formats.begin() + std::ptrdiff_t{layer} * config.num_kv_heads;
    layers += std::any_of(first, first + config.num_kv_heads, IsQuantized);
  }
  return layers;
}

std::string DescribeWindows(const CacheConfig& config) {
  int windows = 0, plain = 0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (config.window(layer) == 0) continue;
    ++windows;
    const auto first = config.formats.begin() + std::ptrdiff_t{layer} * config.num_kv_heads;
    plain += std::all_of(first, first + config.num_kv_heads,
                         [](const HeadFormat& f) { return f.k.bits == 16 && f.v.bits == 16; });
  }
  if (windows == 0) return "";
  std::string out = fmt::format("applied to {} of {} layers; {} window layers kept in 16 bit",
                                NumQuantizedLayers(config), config.num_layers, plain);
  if (windows > plain) out += fmt::format(", {} in 8 bit", windows - plain);
  return out;
}

double HeadBitsPerValue(const CacheConfig& config, size_t head) {
  const HeadFormat& f = config.formats[head];
  if (config.window(static_cast<int>(head) / config.num_kv_heads) == 0) {
    return BitsPerValue(f, config.head_dim);
  }
  const size_t bytes = OpenLayout::For(f, config.recent, config.head_dim).bytes;
  return 8.0 * static_cast<double>(bytes) / (2.0 * kPageLen * config.head_dim);
}

std::string ExplainKv(const KvChoice& choice) {
  const CacheConfig& config = choice.config;
  const int heads = config.num_kv_heads;
  const auto at = [&](int layer, int head) {
    return static_cast<size_t>(layer) * heads + static_cast<size_t>(head);
  };
  const auto same = [&](size_t a, size_t b) {
    return config.formats[a] == config.formats[b] && choice.reasons[a] == choice.reasons[b] &&
           (config.window(static_cast<int>(a) / heads) > 0) ==
               (config.window(static_cast<int>(b) / heads) > 0);
  };
  const auto range = [](int first, int last) {
    return first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
  };
  std::string out;
  for (int layer = 0; layer < config.num_layers;) {
    int end = layer + 1;
    const auto equal_layers = [&](int a, int b) {
      for (int h = 0; h < heads; ++h) {
        if (!same(at(a, h), at(b, h))) return false;
      }
      return true;
    };
    while (end < config.num_layers && equal_layers(layer, end)) ++end;
    for (int head = 0; head < heads;) {
      int head_end = head + 1;
      while (head_end < heads && same(at(layer, head), at(layer, head_end))) ++head_end;
      const std::string where =
          "layer " + range(layer, end - 1) +
          (head == 0 && head_end == heads ? "" : " head " + range(head, head_end - 1));
      const HeadFormat& f = config.formats[at(layer, head)];
      out += fmt::format("  {:<22} {:<12} {:.3f} bits  {}  ({})\n", where, FormatName(f),
                         HeadBitsPerValue(config, at(layer, head)), DescribeKernel(f),
                         choice.reasons[at(layer, head)]);
      head = head_end;
    }
    layer = end;
  }
  return out;
}

}  // namespace tq::cli
