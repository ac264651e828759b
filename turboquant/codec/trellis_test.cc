#include "turboquant/codec/trellis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "turboquant/base/isa.h"
#include "turboquant/base/status.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/pack.h"
#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

constexpr int kLens[] = {16, 48, 64, 96, 128, 256, 512};

std::vector<float> Gaussian(int n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(rng);
  return x;
}

struct Encoded {
  std::vector<uint8_t> symbols;
  std::vector<int8_t> levels;
  bool operator==(const Encoded&) const = default;
};

Encoded Encode(int bits, const std::vector<float>& x, int num_valid) {
  Encoded e{std::vector<uint8_t>(x.size()), std::vector<int8_t>(x.size())};
  TrellisEncode(bits, x.data(), num_valid, static_cast<int>(x.size()), e.symbols.data(),
                e.levels.data());
  return e;
}

std::vector<int8_t> Decode(int bits, const std::vector<uint8_t>& symbols) {
  std::vector<int8_t> levels(symbols.size());
  TrellisDecodeRef(bits, symbols.data(), static_cast<int>(symbols.size()), levels.data());
  return levels;
}

double SquaredError(int bits, const std::vector<float>& x, const std::vector<int8_t>& levels,
                    int num_valid) {
  double sum = 0;
  for (int i = 0; i < num_valid; ++i) {
    const double d = x[i] - GetTrellis(bits).unit * levels[i];
    sum += d * d;
  }
  return sum;
}

TEST(Trellis, OrderVisitsEveryDepthOnce) {
  for (const int n : kLens) {
    std::vector<int> visits(n);
    for (int i = 0; i < n; ++i) ++visits[TrellisDepth(i, n)];
    EXPECT_EQ(visits, std::vector<int>(n, 1)) << n;
    EXPECT_EQ(TrellisDepth(1, n), 4);
    EXPECT_EQ(TrellisDepth(n / 4, n), 1);
  }
}

TEST(Trellis, TablesAreTheirSumsAndFitTheProducts) {
  for (const int bits : {2, 3, 4}) {
    const TrellisTable& table = GetTrellis(bits);
    EXPECT_EQ(table.bits, bits);
    int top = 0;
    for (int s = 0; s < kTrellisStates; ++s) {
      EXPECT_EQ(table.level[s], table.next[(s >> bits) & 15] + table.mix[(s ^ (s >> 4)) & 15]);
      top = std::max(top, std::abs(table.level[s]));
    }
    EXPECT_LE(top, table.offset);
    EXPECT_LE(table.offset, kMaxTrellisLevel);
    // What attention can make use of: 4 at a time for K, all 16 of a block for V.
    EXPECT_GE(table.max_k_sums, 4);
    EXPECT_GE(table.max_v_sums, bits == 2 ? 16 : 2);
    EXPECT_LE(table.max_k_sums * 2 * (top + table.offset) * kMaxKDigit, 32767);
    EXPECT_LE(table.max_v_sums * 2 * top * kMaxVDigit, 32767);
  }
}

// Max, "Quantizing for minimum distortion" (1960), table I: 4, 8 and 16 levels.
constexpr double kLloydError[] = {0.1175, 0.03454, 0.009497};

TEST(Trellis, BeatsLloydMaxOnGaussians) {
  // Measured on 8000 streams (docs/decisions/trellis-tables.md): 1.74, 2.08 and 1.85 dB; 2000
  // streams of 64 spread by 0.03 dB.
  const double decibels[] = {1.63, 1.97, 1.74};
  constexpr int kStreams = 2000, kLen = 64;
  for (const int bits : {2, 3, 4}) {
    double error = 0;
    for (unsigned i = 0; i < kStreams; ++i) {
      const std::vector<float> x = Gaussian(kLen, i);
      error += SquaredError(bits, x, Encode(bits, x, kLen).levels, kLen);
    }
    error /= kStreams * kLen;
    EXPECT_GT(10 * std::log10(kLloydError[bits - 2] / error), decibels[bits - 2]) << bits;
  }
}

TEST(Trellis, LevelsAreThoseOfTheSymbolsOnEveryIsa) {
  for (const int bits : {2, 3, 4}) {
    for (const int n : kLens) {
      const std::vector<float> gaussian = Gaussian(n, static_cast<unsigned>(n + bits));
      for (const int num_valid : {n, n - 5, 1, 0}) {
        for (const float size : {1.f, 0.f, 1e-30f, 1e-3f, 30.f, 1e30f, FLT_MAX}) {
          std::vector<float> x = gaussian;
          for (float& v : x) v = std::clamp(v, -1.f, 1.f) * size;
          ASSERT_TRUE(ForceIsa("ref").ok());
          const Encoded want = Encode(bits, x, num_valid);
          EXPECT_EQ(want.levels, Decode(bits, want.symbols));
          EXPECT_LT(*std::max_element(want.symbols.begin(), want.symbols.end()), 1 << bits);
          for (const std::string& isa : AvailableIsas()) {
            ASSERT_TRUE(ForceIsa(isa).ok());
            EXPECT_EQ(want, Encode(bits, x, num_valid))
                << StrCat(isa, " bits ", bits, " n ", n, " valid ", num_valid, " size ", size);
          }
          ResetIsa();
        }
      }
    }
  }
}

TEST(Trellis, PaddingDoesNotCount) {
  for (const int bits : {2, 3, 4}) {
    std::vector<float> x = Gaussian(64, 3);
    const Encoded want = Encode(bits, x, 59);
    for (int i = 59; i < 64; ++i) x[i] = 1e9f;
    EXPECT_EQ(want, Encode(bits, x, 59));
    // Free neighbours leave the others more choice.
    double padded = 0, full = 0;
    for (unsigned seed = 0; seed < 300; ++seed) {
      x = Gaussian(64, seed);
      padded += SquaredError(bits, x, Encode(bits, x, 48).levels, 48);
      full += SquaredError(bits, x, Encode(bits, x, 64).levels, 48);
    }
    EXPECT_LT(padded, full);
  }
}

TEST(Trellis, OutliersGetTheOutermostLevels) {
  for (const int bits : {2, 3, 4}) {
    const TrellisTable& table = GetTrellis(bits);
    const int top = *std::max_element(table.level, table.level + kTrellisStates);
    for (const float size : {10.f, 1e6f, FLT_MAX}) {
      std::vector<float> x = Gaussian(64, 4);
      x[20] = size;
      const Encoded e = Encode(bits, x, 64);
      EXPECT_GE(e.levels[20], top - 3) << bits;  // a better one costs the neighbours more
    }
  }
}

// Walks the ring backwards and takes the nearest level at each step; the symbols behind the last
// step are taken as 0.
std::vector<uint8_t> GreedySymbols(int bits, const std::vector<float>& x) {
  const int n = static_cast<int>(x.size());
  const TrellisTable& table = GetTrellis(bits);
  std::vector<uint8_t> symbols(x.size());
  int state = 0;
  for (int i = n - 1; i >= 0; --i) {
    const int depth = TrellisDepth(i, n);
    const int shifted = (state << bits) & (kTrellisStates - 1);
    const auto error = [&](int u) {
      return std::fabs(x[depth] - table.unit * static_cast<float>(table.level[shifted | u]));
    };
    int best = 0;
    for (int u = 1; u < 1 << bits; ++u) {
      if (error(u) < error(best)) best = u;
    }
    symbols[depth] = static_cast<uint8_t>(best);
    state = shifted | best;
  }
  return symbols;
}

TEST(Trellis, NoGreedyPathIsBetter) {
  for (const int bits : {2, 3, 4}) {
    for (const int n : {64, 128}) {
      for (unsigned seed = 0; seed < 300; ++seed) {
        const std::vector<float> x = Gaussian(n, seed + 5000);
        EXPECT_LE(SquaredError(bits, x, Encode(bits, x, n).levels, n),
                  SquaredError(bits, x, Decode(bits, GreedySymbols(bits, x)), n))
            << StrCat("bits ", bits, " n ", n, " seed ", seed);
      }
    }
  }
}

// The smallest error of any ring, in doubles: one pass for every overlap at the cut.
double BestRing(int bits, const std::vector<float>& x) {
  const int n = static_cast<int>(x.size()), overlaps = kTrellisStates >> bits;
  const TrellisTable& table = GetTrellis(bits);
  double best = HUGE_VAL;
  std::vector<double> least(overlaps), cost(kTrellisStates);
  for (int overlap = 0; overlap < overlaps; ++overlap) {
    std::fill(least.begin(), least.end(), HUGE_VAL);
    least[overlap] = 0;
    for (int i = n - 1; i >= 0; --i) {
      for (int s = 0; s < kTrellisStates; ++s) {
        const double d = x[TrellisDepth(i, n)] - table.unit * table.level[s];
        cost[s] = least[s >> bits] + d * d;
      }
      for (int k = 0; k < overlaps; ++k) {
        least[k] = HUGE_VAL;
        for (int s = k; s < kTrellisStates; s += overlaps) least[k] = std::min(least[k], cost[s]);
      }
    }
    best = std::min(best, least[overlap]);
  }
  return best;
}

TEST(Trellis, ComesWithinTwoPercentOfTheBestRing) {
  for (const int bits : {2, 3, 4}) {
    double error = 0, best = 0;
    for (unsigned seed = 0; seed < 100; ++seed) {
      const std::vector<float> x = Gaussian(64, seed + 9000);
      const double of_x = SquaredError(bits, x, Encode(bits, x, 64).levels, 64);
      const double best_of_x = BestRing(bits, x);
      EXPECT_GE(of_x, best_of_x * (1 - 1e-5));
      error += of_x;
      best += best_of_x;
    }
    EXPECT_LT(error, best * 1.02) << bits;
  }
}

TEST(Trellis, TilesDecodeOnEveryIsa) {
  std::mt19937 rng(11);
  for (const int bits : {2, 3, 4}) {
    for (const int n : kLens) {
      for (const int groups : {1, 4, 5}) {
        const int cells = groups * n / 4;
        std::vector<uint8_t> symbols(static_cast<size_t>(cells) * 64);
        for (uint8_t& u : symbols) u = static_cast<uint8_t>(rng() & ((1u << bits) - 1));
        std::vector<uint8_t> packed;
        if (cells % 16 == 0) {  // what PackCodes takes; every side of a block is such
          packed.resize(static_cast<size_t>(cells) * 8 * bits);
          PackCodes(bits, symbols.data(), cells, packed.data());
        }
        for (const int add : {0, GetTrellis(bits).offset, 64}) {
          std::vector<uint8_t> want(symbols.size());
          for (int lane = 0; lane < groups * 16; ++lane) {
            std::vector<uint8_t> stream(n);
            for (int i = 0; i < n; ++i) stream[i] = symbols[CodeIndex(lane, i, n)];
            const std::vector<int8_t> levels = Decode(bits, stream);
            for (int i = 0; i < n; ++i) {
              want[CodeIndex(lane, i, n)] = static_cast<uint8_t>(levels[i] + add);
            }
          }
          for (const std::string& isa : AvailableIsas()) {
            ASSERT_TRUE(ForceIsa(isa).ok());
            std::vector<uint8_t> tile = symbols;
            TrellisLevels(bits, tile.data(), groups, n / 4, add);
            EXPECT_EQ(want, tile) << StrCat(isa, " bits ", bits, " n ", n, " add ", add);
            if (packed.empty()) continue;
            std::vector<uint8_t> unpacked(symbols.size());
            UnpackTrellis(bits, packed.data(), groups, n / 4, add, unpacked.data());
            EXPECT_EQ(want, unpacked) << StrCat(isa, " bits ", bits, " n ", n, " add ", add);
          }
          ResetIsa();
        }
      }
    }
  }
}

}  // namespace
}  // namespace tq
