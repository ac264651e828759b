#include "runtime/evaluate/tasks/fact_maker.h"

#include <numeric>

#include "turboquant/base/numeric.h"
#include "turboquant/base/status.h"

namespace tq {
namespace {

constexpr const char* kCities[] = {
    "Aberdeen",  "Accra",     "Adelaide", "Algiers",   "Amman",    "Antwerp",  "Athens",
    "Baghdad",   "Bangkok",   "Basel",    "Beirut",    "Belfast",  "Bergen",   "Berlin",
    "Bilbao",    "Bogota",    "Boston",   "Brisbane",  "Bristol",  "Budapest", "Cairo",
    "Calgary",   "Cardiff",   "Chicago",  "Dakar",     "Dallas",   "Delhi",    "Denver",
    "Detroit",   "Dresden",   "Dublin",   "Durban",    "Florence", "Geneva",   "Glasgow",
    "Granada",   "Hamburg",   "Hanoi",    "Havana",    "Helsinki", "Houston",  "Jakarta",
    "Krakow",    "Lagos",     "Leeds",    "Leipzig",   "Lima",     "Lisbon",   "Madrid",
    "Manila",    "Melbourne", "Memphis",  "Miami",     "Milan",    "Montreal", "Moscow",
    "Munich",    "Nairobi",   "Naples",   "Nashville", "Odessa",   "Osaka",    "Oslo",
    "Ottawa",    "Oxford",    "Palermo",  "Perth",     "Phoenix",  "Prague",   "Quebec",
    "Quito",     "Rotterdam", "Santiago", "Seattle",   "Seoul",    "Seville",  "Sofia",
    "Stockholm", "Sydney",    "Tampa",    "Toronto",   "Trieste",  "Tunis",    "Turin",
    "Valencia",  "Vienna",    "Warsaw",   "York",      "Zagreb",   "Zurich"};

constexpr const char* kPersons[] = {
    "Agatha",  "Bruno",    "Clarissa", "Dmitri",  "Eleanor", "Fabian",  "Greta",   "Hector",
    "Ingrid",  "Jasper",   "Katrin",   "Lorenzo", "Matilda", "Norbert", "Olympia", "Percy",
    "Quentin", "Rosalind", "Sergio",   "Tabitha", "Ursula",  "Vincent", "Wilma",   "Yuki"};

constexpr const char* kNouns[] = {
    "anchor", "apple",  "arrow",  "barrel", "basket",  "bell",   "blanket", "bottle", "bridge",
    "brush",  "bucket", "button", "cabin",  "candle",  "carpet", "castle",  "chair",  "circle",
    "clock",  "cloud",  "copper", "corner", "cotton",  "cradle", "curtain", "desk",   "diamond",
    "door",   "drum",   "eagle",  "engine", "feather", "fence",  "field",   "finger", "flag",
    "flute",  "forest", "fork",   "garden", "glass",   "glove",  "guitar",  "hammer", "harbor",
    "hat",    "helmet", "honey",  "island", "jacket",  "jewel",  "kettle",  "key",    "kitchen",
    "ladder", "lake",   "lamp",   "leaf",   "lemon",   "letter", "magnet",  "map",    "market",
    "meadow", "mirror", "moon",   "motor",  "needle",  "nest",   "ocean",   "orange", "oven",
    "paint",  "paper",  "pencil", "pepper", "piano",   "pillow", "planet",  "plate",  "pocket",
    "rabbit", "rain",   "ribbon", "river",  "rocket",  "roof",   "rope",    "saddle", "salt",
    "school", "shadow", "shelf",  "silver", "spoon",   "stone",  "storm",   "street", "sugar",
    "table",  "tent",   "thread", "ticket", "tiger",   "tower",  "train",   "tunnel", "valley",
    "velvet", "violin", "wagon",  "wheel",  "whistle", "window", "winter",  "wolf",   "yard"};

constexpr IndirectFact kIndirect[] = {
    {"NAME lives beside the Eiffel Tower.", "A person who has been to Paris is called"},
    {"NAME plays Beethoven every evening.", "The person who knows how to use a piano is called"},
    {"NAME cannot drink anything made from milk.", "The one with lactose intolerance is called"},
    {"NAME keeps three kittens and a tomcat.", "The owner of the cats is called"},
    {"NAME grew up in Tokyo.", "The one who speaks Japanese is called"},
    {"NAME repairs engines and changes tyres.", "The mechanic is called"},
    {"NAME bakes bread before sunrise.", "The one who works with flour is called"},
    {"NAME teaches algebra at a school.", "The expert on mathematics is called"},
    {"NAME performs operations in a hospital.", "The surgeon is called"},
    {"NAME owns forty cows and eighty sheep.", "The farmer is called"},
    {"NAME sails around the islands alone.", "The one who has a boat is called"},
    {"NAME won every marathon this year.", "The fastest runner is called"},
};

}  // namespace

std::span<const char* const> CityNames() {
  return kCities;
}
std::span<const char* const> PersonNames() {
  return kPersons;
}
std::span<const char* const> CommonNouns() {
  return kNouns;
}
std::span<const IndirectFact> IndirectFacts() {
  return kIndirect;
}

size_t FactMaker::Below(size_t below) {
  return static_cast<size_t>(SplitMix64(state_) % below);
}

std::string FactMaker::AnyNumber(int digits) {
  std::string number(1, static_cast<char>('1' + Below(9)));
  while (static_cast<int>(number.size()) < digits) number += static_cast<char>('0' + Below(10));
  return number;
}

std::string FactMaker::Number(int digits) {
  std::string number;
  do {
    number = AnyNumber(digits);
  } while (!given_.insert(number).second);
  return number;
}

std::vector<std::string> FactMaker::Some(std::span<const char* const> list, size_t count) {
  TQ_CHECK(count <= list.size());
  std::vector<size_t> order(list.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Shuffle(&order);
  std::vector<std::string> some;
  for (size_t i = 0; i < count; ++i) some.emplace_back(list[order[i]]);
  return some;
}

uint64_t SeedOf(uint64_t seed, const std::string& kind, int64_t length, int sample) {
  const uint64_t parts[] = {seed, static_cast<uint64_t>(length), static_cast<uint64_t>(sample)};
  return Hash64(kind.data(), kind.size(), Hash64(parts, sizeof(parts)));
}

}  // namespace tq
