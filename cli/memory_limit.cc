#include "cli/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "cli/plan_model.h"
#include "runtime/model/model_profile.h"
#include "turboquant/base/file.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/plan/survey.h"

namespace tq::cli {
namespace {

// The number in the first line of a file of the system; 0 where there is none, or no limit.
size_t NumberIn(const std::string& path) {
  std::ifstream in(path);
  size_t value = 0;
  return in >> value ? value : 0;
}

size_t AvailableBytes() {
  std::ifstream in("/proc/meminfo");
  std::string key;
  for (size_t kib = 0; in >> key >> kib; in.ignore(64, '\n')) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

size_t GroupBytesLeft() {
  const size_t most = NumberIn("/sys/fs/cgroup/memory.max");
  const size_t used = NumberIn("/sys/fs/cgroup/memory.current");
  if (most == 0) return std::numeric_limits<size_t>::max();
  return most > used ? most - used : 0;
}

// The format that a run of the model gets: preset, pins, or a profile.
Result<CacheFormat> FormatOfRun(const ModelSpec& spec, const std::string& path, const KvFlags& kv,
                                int64_t context) {
  CacheWindow window;
  CacheFormat format;
  std::optional<ModelProfile> found;
  if (kv.kv == "auto") {
    TQ_ASSIGN_OR_RETURN(found, FindModelProfile(path));
  }
  if (found) {
    format = PlanFormat(found->profile, found->name, window);
  } else {
    const std::string name = kv.kv != "auto" ? kv.kv : context >= kMinAutoContext ? "k8v4" : "f16";
    TQ_ASSIGN_OR_RETURN(format, PlanFormat(name, window));
  }
  const LayerSpec& first = spec.layers.front();
  const bool uniform = std::all_of(spec.layers.begin(), spec.layers.end(), [&](const LayerSpec& l) {
    return (l.kind == LayerKind::kFull || l.kind == LayerKind::kWindow) &&
           l.num_kv_heads == first.num_kv_heads && l.head_dim == first.head_dim;
  });
  if (uniform) {
    // Pins and windows as the run itself applies them.
    KvChoice choice;
    choice.name = format.name;
    choice.config.num_layers = spec.num_layers();
    choice.config.num_kv_heads = first.num_kv_heads;
    choice.config.head_dim = first.head_dim;
    const size_t heads = spec.layers.size() * static_cast<size_t>(first.num_kv_heads);
    if (format.formats.size() == 1) {
      const HeadFormat one = format.formats[0];
      format.formats.clear();
      for (const LayerSpec& l : spec.layers) {
        format.formats.insert(format.formats.end(), static_cast<size_t>(l.num_kv_heads),
                              l.kind == LayerKind::kFull ? one : HeadFormat{});
      }
    }
    if (format.formats.size() == heads) {
      choice.config.formats = std::move(format.formats);
      choice.reasons.resize(heads);
      TQ_RETURN_IF_ERROR(ApplyPins(kv.pin, &choice));
      format.formats = std::move(choice.config.formats);
      format.name = choice.name;
    }
  }
  if (kv.recent_len) format.window.recent_len = *kv.recent_len;
  if (kv.sink_len) format.window.sink_len = *kv.sink_len;
  return format;
}

}  // namespace

Result<size_t> MemoryLimit(const std::string& limit) {
  if (!limit.empty()) {
    Result<size_t> bytes = ParseSize(limit);
    if (!bytes.ok()) return bytes.status().WithContext("--memory-limit");
    return bytes;
  }
  const size_t available = AvailableBytes();
  if (available == 0) {
    return Unavailable("the memory of this machine is not known; give --memory-limit SIZE");
  }
  return std::min(available, GroupBytesLeft());
}

Result<Machine> HostMachine(const std::string& limit) {
  Machine m;
  TQ_ASSIGN_OR_RETURN(m.memory_bytes, MemoryLimit(limit));
  m.name = "host";
  m.title = "this machine, " + MachineName();
  m.is_host = true;
  m.source = limit.empty() ? "memory that is available now" : "memory: --memory-limit";
  return m;
}

Result<CacheFormat> PlanFormat(const std::string& kv, const CacheWindow& window) {
  if (kv.find('/') == std::string::npos && !IsDirectory(kv)) {
    return CacheFormat::FromPreset(kv, window);
  }
  TQ_ASSIGN_OR_RETURN(const Profile profile, Profile::Load(kv));
  return PlanFormat(profile, ProfileName(kv), window);
}

CacheFormat PlanFormat(const Profile& profile, const std::string& name, const CacheWindow& window) {
  CacheFormat format;
  format.name = name;
  format.formats = profile.formats;
  format.window = {profile.recent_len, profile.sink_len, window.rollback_len, profile.recent};
  return format;
}

Status CheckMemory(const ModelFlags& model, const KvFlags& kv, int64_t context,
                   const std::string& limit, const OutputFlags& output) {
  TQ_ASSIGN_OR_RETURN(const Machine machine, HostMachine(limit));
  TQ_ASSIGN_OR_RETURN(const std::string path, model.Path());
  const Result<ModelSpec> spec = SpecFromPath(path, context);
  // What the planner cannot read or does not know, the loader names better.
  if (!spec.ok() || context < 0 || context > Planner::kMaxContext) return OkStatus();
  const bool asked = context > 0;
  if (!asked) context = spec->context_len > 0 ? spec->context_len : 8192;
  TQ_ASSIGN_OR_RETURN(const CacheFormat format, FormatOfRun(*spec, path, kv, context));
  PlanOptions options;
  options.machine = machine;
  options.threads = model.threads > 0 ? model.threads : NumPhysicalCores();
  const Result<Planner> planner = Planner::Create(*spec, format, options);
  if (!planner.ok()) return OkStatus();
  const size_t needed = planner->TotalBytes(context, 1);
  if (needed <= machine.memory_bytes) return OkStatus();
  const int64_t longest = planner->MaxContext(1, machine.memory_bytes);
  const auto both = [](size_t bytes) { return FormatBoth(static_cast<double>(bytes)); };
  const std::string message =
      StrCat("a context of ", FormatCount(context), " tokens with ", format.name, " needs ",
             both(needed), "; the limit is ", both(machine.memory_bytes),
             longest > 0 ? StrCat("; the longest that fits is --context ", longest)
                         : std::string("; not even one token fits"),
             "; tq plan shows what needs how much");
  if (asked || !limit.empty()) return ResourceExhausted(message);
  PrintNote(output, "memory: " + message);
  return OkStatus();
}

}  // namespace tq::cli
