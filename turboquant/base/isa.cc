#include "turboquant/base/isa.h"

#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdint>
#include <cstdlib>

namespace tq {
namespace {

std::atomic<bool> g_reference{false};
std::atomic<bool> g_no_vnni{false};  // a set without it is forced

constexpr char kVnniName[] = "avx3_vnni";

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

// The machine has AVX3 and VNNI.
bool HasVnni() {
#if HWY_ARCH_X86 && (HWY_TARGETS & HWY_AVX3)
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512vnni");
  return has;
#else
  return false;
#endif
}

}  // namespace

std::vector<std::string> AvailableIsas() {
  std::vector<std::string> names;
  if (HasVnni()) names.push_back(kVnniName);
  for (const int64_t target : Targets()) names.push_back(Lower(hwy::TargetName(target)));
  names.push_back("ref");
  return names;
}

Status ForceIsa(const std::string& name) {
  ResetIsa();
  if (name == "ref") {
    g_reference = true;
    return OkStatus();
  }
  if (name == kVnniName && HasVnni()) return OkStatus();  // what ResetIsa chose
  g_no_vnni = true;
  for (const int64_t target : Targets()) {
    if (Lower(hwy::TargetName(target)) != name) continue;
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
  g_no_vnni = false;
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

Status ApplyIsaFromEnvironment() {
  const char* isa = std::getenv("TQ_ISA");
  if (isa == nullptr || *isa == '\0') return OkStatus();
  return ForceIsa(isa).WithContext("TQ_ISA");
}

bool UseVnni() {
  return !g_no_vnni.load(std::memory_order_relaxed) && !UseReferenceKernels() && HasVnni();
}

bool UseReferenceKernels() {
  return g_reference.load(std::memory_order_relaxed);
}

std::string CurrentIsa() {
  if (UseReferenceKernels()) return "ref";
  if (UseVnni()) return kVnniName;
  const std::vector<int64_t> targets = Targets();
  return targets.empty() ? "ref" : Lower(hwy::TargetName(targets.front()));
}

}  // namespace tq
