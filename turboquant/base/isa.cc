#include "turboquant/base/isa.h"

#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <cstdlib>

namespace tq {
namespace {

constexpr char kVnniName[] = "avx3_vnni";

std::atomic<bool> g_reference{false};

std::string Lower(const char* name) {
  std::string s(name);
  for (char& c : s) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return s;
}

// Generated for this build and supported by this machine, best (lowest bit) first.
std::vector<int64_t> Targets() {
  std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  std::sort(targets.begin(), targets.end());
  return targets;
}

bool HasVnni([[maybe_unused]] int64_t target) {
#if defined(__x86_64__)
  return target == HWY_AVX3 && __builtin_cpu_supports("avx512vnni") != 0 &&
         __builtin_cpu_supports("avx512vbmi") != 0;
#else
  return false;
#endif
}

bool BestHasVnni() {
  const std::vector<int64_t> targets = Targets();
  return !targets.empty() && HasVnni(targets.front());
}

std::atomic<bool>& VnniFlag() {
  static std::atomic<bool> flag{BestHasVnni()};
  return flag;
}

}  // namespace

std::vector<std::string> AvailableIsas() {
  std::vector<std::string> names;
  for (const int64_t target : Targets()) {
    if (HasVnni(target)) names.push_back(kVnniName);
    names.push_back(Lower(hwy::TargetName(target)));
  }
  names.push_back("ref");
  return names;
}

Status ForceIsa(const std::string& name) {
  ResetIsa();
  if (name == "ref") {
    g_reference = true;
    VnniFlag() = false;
    return OkStatus();
  }
  for (const int64_t target : Targets()) {
    const bool vnni = HasVnni(target) && name == kVnniName;
    if (!vnni && Lower(hwy::TargetName(target)) != name) continue;
    VnniFlag() = vnni;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return OkStatus();
  }
  std::string available;
  for (const std::string& isa : AvailableIsas()) available += (available.empty() ? "" : ", ") + isa;
  return InvalidArgument("instruction set '", name,
                         "' is not available here; available: ", available);
}

void ResetIsa() {
  g_reference = false;
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  VnniFlag() = BestHasVnni();
}

Status ApplyIsaFromEnvironment() {
  const char* isa = std::getenv("TQ_ISA");
  if (isa == nullptr || *isa == '\0') return OkStatus();
  return ForceIsa(isa).WithContext("TQ_ISA");
}

bool UseReferenceKernels() {
  return g_reference.load(std::memory_order_relaxed);
}

bool UseVnni() {
  return VnniFlag().load(std::memory_order_relaxed);
}

std::string CurrentIsa() {
  if (UseReferenceKernels()) return "ref";
  if (UseVnni()) return kVnniName;
  const std::vector<int64_t> targets = Targets();
  return targets.empty() ? "ref" : Lower(hwy::TargetName(targets.front()));
}

}  // namespace tq
