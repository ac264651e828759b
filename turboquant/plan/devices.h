// Accelerators that plans are made for: memory and bandwidth, each figure with its source.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "turboquant/base/status.h"

namespace tq {

// What a step runs on. Zero = not known: what depends on it is left out, never guessed.
struct Machine {
  std::string name;      // "h200", "host"
  std::string title;     // "NVIDIA H200 SXM 141 GB"
  std::string source;    // of the figures
  bool is_host = false;  // our runtime on a CPU; else an accelerator
  size_t memory_bytes = 0;
  double read_bytes_per_second = 0;
  double flops = 0;                  // dense 16-bit matrix products, float32 sums
  double link_bytes_per_second = 0;  // to the host's memory, one direction
};

// One row of the table. Memory as the driver reports it in total, else the datasheet's; bandwidth
// as measured where it was, else the datasheet's peak, which real reads do not quite reach.
struct DeviceInfo {
  const char* name;
  const char* title;
  size_t memory_mib;
  double read_gb_per_second;
  double peak_gb_per_second;  // datasheet
  double tflops;              // dense bf16, datasheet
  double link_gb_per_second;  // PCIe, one direction, as specified
  const char* source;
};
std::span<const DeviceInfo> Devices();

// A name of the table. kNotFound lists the names.
Result<Machine> FindDevice(std::string_view name);

// "24GiB", "80GB", "512M", "1.5 TB", "1000" (bytes): binary units are KiB, MiB, GiB, TiB; decimal
// ones KB, MB, GB, TB; K, M, G, T alone are binary. kInvalidArgument says what was wrong.
Result<size_t> ParseSize(std::string_view text);

}  // namespace tq
