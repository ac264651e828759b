#include "turboquant/plan/devices.h"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

namespace tq {
namespace {

constexpr char kNvidia[] = "NVIDIA datasheet; memory: total of nvidia-smi";
// PCIe of one direction: generation 4 x16 has 32 GB/s, generation 5 has 64.
constexpr std::array<DeviceInfo, 13> kDevices = {{
    {"h200", "NVIDIA H200 SXM 141 GB", 143156, 4540, 4800, 989.4, 64,
     "read bandwidth (17 GB by plain loads) and memory (cuMemGetInfo) measured; peak and FLOP/s: "
     "NVIDIA datasheet"},
    {"h100", "NVIDIA H100 SXM 80 GB", 81559, 3350, 3350, 989.4, 64, kNvidia},
    {"h100-pcie", "NVIDIA H100 PCIe 80 GB", 81559, 2000, 2000, 756, 64, kNvidia},
    {"b200", "NVIDIA B200 180 GB", 171661, 8000, 8000, 2250, 64,
     "NVIDIA DGX B200 datasheet; memory: 180 GB"},
    {"a100-80g", "NVIDIA A100 SXM 80 GB", 81920, 2039, 2039, 312, 32, kNvidia},
    {"a100-40g", "NVIDIA A100 SXM 40 GB", 40960, 1555, 1555, 312, 32, kNvidia},
    {"l40s", "NVIDIA L40S 48 GB", 46068, 864, 864, 362, 32, kNvidia},
    {"l4", "NVIDIA L4 24 GB", 23034, 300, 300, 121, 32, kNvidia},
    {"a6000", "NVIDIA RTX A6000 48 GB", 46068, 768, 768, 154.8, 32, kNvidia},
    {"rtx5090", "NVIDIA GeForce RTX 5090 32 GB", 32607, 1792, 1792, 209.5, 64, kNvidia},
    {"rtx4090", "NVIDIA GeForce RTX 4090 24 GB", 24564, 1008, 1008, 165.2, 32, kNvidia},
    {"rtx3090", "NVIDIA GeForce RTX 3090 24 GB", 24576, 936, 936, 71, 32, kNvidia},
    {"mi300x", "AMD Instinct MI300X 192 GB", 183105, 5300, 5300, 1307.4, 64,
     "AMD datasheet; memory: 192 GB"},
}};

std::string Lower(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

}  // namespace

std::span<const DeviceInfo> Devices() {
  return kDevices;
}

Result<Machine> FindDevice(std::string_view name) {
  const std::string lower = Lower(name);
  std::string names;
  for (const DeviceInfo& d : kDevices) {
    names += (names.empty() ? "" : ", ") + std::string(d.name);
    if (lower != d.name) continue;
    Machine m;
    m.name = d.name;
    m.title = d.title;
    m.source = d.source;
    m.memory_bytes = d.memory_mib << 20;
    m.read_bytes_per_second = d.read_gb_per_second * 1e9;
    m.flops = d.tflops * 1e12;
    m.link_bytes_per_second = d.link_gb_per_second * 1e9;
    return m;
  }
  return NotFound("device '", name, "' is not in the table; known: ", names,
                  ", host, or a size such as 24GiB");
}

Result<size_t> ParseSize(std::string_view text) {
  const std::string lower = Lower(text);
  const auto bad = [&] {
    return InvalidArgument("'", text,
                           "' is no size; write bytes or a number with KiB, MiB, GiB, "
                           "TiB, KB, MB, GB or TB, e.g. 24GiB");
  };
  size_t digits = 0;
  while (digits < lower.size() &&
         (std::isdigit(static_cast<unsigned char>(lower[digits])) != 0 || lower[digits] == '.')) {
    ++digits;
  }
  if (digits == 0 || digits > 24) return bad();
  char* end = nullptr;
  const std::string number = lower.substr(0, digits);
  const double value = std::strtod(number.c_str(), &end);
  if (end != number.c_str() + number.size()) return bad();
  const std::string unit = lower.substr(digits);
  double factor = 1;
  if (!unit.empty() && unit != "b") {
    const size_t power = std::string_view("kmgt").find(unit[0]);
    const std::string rest = unit.substr(1);
    if (power == std::string_view::npos || (!rest.empty() && rest != "b" && rest != "ib")) {
      return bad();
    }
    factor = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = value * factor;
  if (!(bytes >= 1 && bytes <= 1e18)) {
    return InvalidArgument("size '", text, "' is ", bytes, " bytes; expected 1 to 1e18");
  }
  return static_cast<size_t>(bytes);
}

}  // namespace tq
