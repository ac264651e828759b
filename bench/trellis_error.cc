// Error and time of trellis-coded levels on N(0, 1): a table for docs/decisions/trellis-tables.md.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "turboquant/base/isa.h"
#include "turboquant/codec/pack.h"
#include "turboquant/codec/trellis.h"

namespace {

constexpr int kStreams = 8000;
constexpr double kLloydError[] = {0.1175, 0.03454, 0.009497};

// Shortest of several runs, in nanoseconds a call.
template <typename Fn>
double Nanoseconds(int calls, Fn&& fn) {
  double best = HUGE_VAL;
  for (int run = 0; run < 9; ++run) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) fn(i);
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / calls);
  }
  return best;
}

void Measure(int bits, int n) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(kStreams) * n);
  for (float& v : x) v = normal(rng);
  std::vector<uint8_t> symbols(n);
  std::vector<int8_t> levels(n);
  const auto encode = [&](int i) {
    tq::TrellisEncode(bits, &x[static_cast<size_t>(i) * n], n, n, symbols.data(), levels.data());
  };
  double error = 0;
  for (int i = 0; i < kStreams; ++i) {
    encode(i);
    for (int j = 0; j < n; ++j) {
      const double d = x[static_cast<size_t>(i) * n + j] - tq::GetTrellis(bits).unit * levels[j];
      error += d * d;
    }
  }
  error /= static_cast<double>(kStreams) * n;

  // A block side: 64 lanes of n.
  const std::vector<uint8_t> packed(static_cast<size_t>(n) * 8 * bits, 0x6d);
  std::vector<uint8_t> tile(static_cast<size_t>(n) * 64);
  const uint8_t table[16] = {};
  const auto plain = [&](int) { tq::UnpackCodes(bits, packed.data(), n, table, tile.data()); };
  const auto trellis = [&](int) {
    tq::UnpackTrellis(bits, packed.data(), 4, n / 4, 0, tile.data());
  };
  const double vectors = 2.0 * n;
  std::printf("| %d | %d | %.5f | %.2f | %.2f | %.2f | %.2f |\n", bits, n, error,
              10 * std::log10(kLloydError[bits - 2] / error), Nanoseconds(200, encode) / 1000,
              Nanoseconds(200, trellis) / vectors, Nanoseconds(200, plain) / vectors);
}

}  // namespace

int main() {
  if (!tq::ApplyIsaFromEnvironment().ok()) return 2;
  std::printf(
      "isa %s\n\n| bits | values | error | dB below Lloyd-Max | encode us | unpack 32 levels "
      "ns | 32 plain codes ns |\n|---|---|---|---|---|---|---|\n",
      tq::CurrentIsa().c_str());
  for (int bits = 2; bits <= 4; ++bits) {
    for (const int n : {16, 64, 128}) Measure(bits, n);
  }
}
