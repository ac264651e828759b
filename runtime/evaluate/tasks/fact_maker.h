// Names and numbers for planted facts: deterministic from a seed, none of them twice.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tq {

// A fact that is told in one way and asked for in another, with no word in common: "NAME" stands
// for who it is about. The question goes on to the name.
struct IndirectFact {
  const char* fact;
  const char* question;
};

std::span<const char* const> CityNames();
std::span<const char* const> PersonNames();
std::span<const char* const> CommonNouns();  // short words, one meaning of each is enough
std::span<const IndirectFact> IndirectFacts();

class FactMaker {
 public:
  explicit FactMaker(uint64_t seed) : state_(seed) {}
  // 0 .. below - 1.
  size_t Below(size_t below);
  // A number of `digits` digits that this maker has not given before; fewer than half of all may
  // be asked for.
  std::string Number(int digits);
  // Any number of `digits` digits.
  std::string AnyNumber(int digits);
  // `count` different entries of a list, in random order; count <= list.size().
  std::vector<std::string> Some(std::span<const char* const> list, size_t count);
  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (size_t i = items->size(); i > 1; --i) std::swap((*items)[i - 1], (*items)[Below(i)]);
  }

 private:
  uint64_t state_;
  std::unordered_set<std::string> given_;
};

// A seed for one text of an evaluation: differs with every argument.
uint64_t SeedOf(uint64_t seed, const std::string& kind, int64_t length, int sample);

}  // namespace tq
