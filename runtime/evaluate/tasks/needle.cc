// Each kind makes one text (or one for each depth) and its questions.
#include "runtime/evaluate/tasks/needle.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "runtime/evaluate/tasks/fact_maker.h"

namespace tq {
namespace {

constexpr int kDigits = 3;           // of a magic number: few, so that small models copy them
constexpr size_t kKeysPerDepth = 3;  // of multi_key
constexpr size_t kValues = 4;        // of multi_value, for each of
constexpr size_t kGroups = 3;        // cities
constexpr size_t kChains = 5, kHops = 3;
constexpr size_t kCommon = 10;  // words that come kOftener times as often as the others
constexpr int64_t kOftener = 10;

constexpr TrialKind kKinds[] = {
    {"single", "one number is planted in the text and asked for"},
    {"multi_key", "many cities have a number each; each is asked for in turn"},
    {"multi_value", "a city has four numbers in different places; all are asked for"},
    {"variables", "a value is handed from variable to variable; the last one's is asked for"},
    {"common_words", "a long list of words; the ten that come most often are asked for"},
    {"indirect", "the question shares no word with the fact: it has to be understood"},
};

struct Maker {
  const Haystack& haystack;
  const NeedleOptions& options;
  std::vector<Trial>* trials;

  // Builds the text around `planted` and fills in what all of its questions share.
  Status Add(const std::string& kind, int64_t length, const std::vector<PlantedLine>& planted,
             std::vector<Trial> questions) const {
    int64_t longest = 0;
    for (const Trial& q : questions) {
      longest = std::max(
          longest, haystack.Count(q.primer.size() > q.question.size() ? q.primer : q.question));
    }
    TQ_ASSIGN_OR_RETURN(std::string text,
                        haystack.Build(length - longest, planted, {length, options.length_flag}));
    const auto shared = std::make_shared<const std::string>(std::move(text));
    for (Trial& q : questions) {
      q.kind = kind;
      q.length = length;
      q.text = shared;
      trials->push_back(std::move(q));
    }
    return OkStatus();
  }
};

Trial MagicNumber(const std::string& city, const std::string& number, double depth) {
  Trial t;
  t.depth = depth;
  t.primer = "The special magic number for the city of " + city + " is";
  t.question =
      "What is the special magic number for the city of " + city + "? Answer with the number only.";
  t.expected = {number};
  return t;
}

std::string MagicFact(const Trial& t) {
  return t.primer + " " + t.expected.front() + ".";
}

Status MakeSingle(const Maker& m, int64_t length, FactMaker& facts) {
  const std::string city = facts.Some(CityNames(), 1).front();
  const std::string number = facts.Number(kDigits);
  for (const double depth : m.options.depths) {
    const Trial t = MagicNumber(city, number, depth);
    TQ_RETURN_IF_ERROR(m.Add("single", length, {{depth, MagicFact(t)}}, {t}));
  }
  return OkStatus();
}

Status MakeMultiKey(const Maker& m, int64_t length, FactMaker& facts) {
  const size_t count = std::min(kKeysPerDepth * m.options.depths.size(), CityNames().size());
  const std::vector<std::string> cities = facts.Some(CityNames(), count);
  std::vector<Trial> questions;
  std::vector<PlantedLine> planted;
  for (size_t i = 0; i < count; ++i) {
    const double depth = m.options.depths[i % m.options.depths.size()];
    questions.push_back(MagicNumber(cities[i], facts.Number(kDigits), depth));
    // Around the depth, not all at one place.
    const double shift = 0.03 * (static_cast<double>(i / m.options.depths.size()) - 1);
    planted.push_back({std::clamp(depth + shift, 0.0, 1.0), MagicFact(questions.back())});
  }
  for (Trial& q : questions) {
    for (const Trial& other : questions) {
      if (other.expected != q.expected) q.wrong.push_back(other.expected.front());
    }
  }
  return m.Add("multi_key", length, planted, std::move(questions));
}

Status MakeMultiValue(const Maker& m, int64_t length, FactMaker& facts) {
  std::vector<Trial> questions;
  std::vector<PlantedLine> planted;
  size_t place = 0;
  for (const std::string& city : facts.Some(CityNames(), kGroups)) {
    Trial t;
    for (size_t v = 0; v < kValues; ++v) {
      t.expected.push_back(facts.Number(kDigits));
      // Places of all groups are mixed.
      const double depth = (static_cast<double>(v * kGroups + place) + 0.5) / (kValues * kGroups);
      planted.push_back({depth, "One of the special magic numbers for the city of " + city +
                                    " is " + t.expected.back() + "."});
    }
    ++place;
    t.rule = ScoreRule::kAll;
    t.primer = "The four special magic numbers for the city of " + city + " are";
    t.question = "What are all the special magic numbers for the city of " + city +
                 "? Answer with the numbers only.";
    t.max_tokens = 40;
    questions.push_back(std::move(t));
  }
  return m.Add("multi_value", length, planted, std::move(questions));
}

Status MakeVariables(const Maker& m, int64_t length, FactMaker& facts) {
  const std::vector<std::string> names = facts.Some(CommonNouns(), kChains * kHops);
  std::vector<Trial> questions;
  std::vector<PlantedLine> planted;
  for (size_t chain = 0; chain < kChains; ++chain) {
    const std::string number = facts.Number(kDigits);
    for (size_t hop = 0; hop < kHops; ++hop) {
      const std::string& name = names[chain * kHops + hop];
      const double depth = (static_cast<double>(hop * kChains + chain) + 0.5) / (kChains * kHops);
      planted.push_back({depth, hop == 0 ? "The value of " + name + " is " + number + "."
                                         : "The value of " + name + " is the value of " +
                                               names[chain * kHops + hop - 1] + "."});
    }
    Trial t;
    t.primer = "Written as a number, the value of " + names[chain * kHops + kHops - 1] + " is";
    t.question = "What number is the value of " + names[chain * kHops + kHops - 1] +
                 "? Answer with the number only.";
    t.expected = {number};
    questions.push_back(std::move(t));
  }
  for (Trial& q : questions) {
    for (const Trial& other : questions) {
      if (other.expected != q.expected) q.wrong.push_back(other.expected.front());
    }
  }
  return m.Add("variables", length, planted, std::move(questions));
}

Status MakeCommonWords(const Maker& m, int64_t length, FactMaker& facts) {
  // Ten words often, as many others as fit a few times; no other text.
  const std::vector<std::string> words = facts.Some(CommonNouns(), CommonNouns().size());
  const std::vector<std::string> common(words.begin(), words.begin() + kCommon);
  Trial t;
  t.rule = ScoreRule::kAll;
  t.kind = "common_words";
  t.length = length;
  t.expected = common;
  t.max_tokens = 48;
  t.primer = "\n\nThe ten words that come most often in the list above are:\n1.";
  t.question = "\nWhich ten words come most often in the list above? Answer with the words only.";
  const std::string head = "A list of words:\n";
  const int64_t room = length - m.haystack.Count(t.question) - m.haystack.Count(head);
  int64_t common_cost = 0, rare_cost = 0;  // tokens of each word once
  for (size_t i = 0; i < words.size(); ++i) {
    (i < kCommon ? common_cost : rare_cost) += m.haystack.Count(", " + words[i]);
  }
  const auto rare_times = [](int64_t times) { return std::max<int64_t>(1, times / kOftener); };
  int64_t times = kOftener * room / (kOftener * common_cost + rare_cost);
  while (times > 0 && times * common_cost + rare_times(times) * rare_cost > room) --times;
  if (constexpr int64_t kLeast = 3; times < kLeast) {
    return TooShort({length, m.options.length_flag},
                    length - room + kLeast * common_cost + rare_cost,
                    "the list of common_words has many words");
  }
  std::vector<std::string> list;
  for (size_t i = 0; i < words.size(); ++i) {
    list.insert(list.end(), static_cast<size_t>(i < kCommon ? times : rare_times(times)), words[i]);
  }
  facts.Shuffle(&list);
  std::string text = head;
  for (size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "" : ", ") + list[i];
  t.text = std::make_shared<const std::string>(std::move(text));
  m.trials->push_back(std::move(t));
  return OkStatus();
}

Status MakeIndirect(const Maker& m, int64_t length, FactMaker& facts) {
  const std::span<const IndirectFact> all = IndirectFacts();
  const std::vector<std::string> names = facts.Some(PersonNames(), all.size());
  std::vector<Trial> questions;
  std::vector<PlantedLine> planted;
  for (size_t i = 0; i < all.size(); ++i) {
    const double depth = m.options.depths[i % m.options.depths.size()];
    std::string fact = all[i].fact;
    fact.replace(0, 4, names[i]);  // "NAME" stands first
    planted.push_back({depth, std::move(fact)});
    Trial t;
    t.depth = depth;
    t.primer = all[i].question;
    t.question =
        "Complete the sentence with a name from the text, and answer with the name only: " +
        t.primer + " ...";
    t.expected = {names[i]};
    for (const std::string& name : names) {
      if (name != names[i]) t.wrong.push_back(name);
    }
    questions.push_back(std::move(t));
  }
  return m.Add("indirect", length, planted, std::move(questions));
}

using MakeKind = Status (*)(const Maker& m, int64_t length, FactMaker& facts);
constexpr MakeKind kMakers[] = {MakeSingle,    MakeMultiKey,    MakeMultiValue,
                                MakeVariables, MakeCommonWords, MakeIndirect};
static_assert(std::size(kMakers) == std::size(kKinds));

}  // namespace

std::span<const TrialKind> NeedleKinds() {
  return kKinds;
}

Result<std::vector<Trial>> MakeNeedleTrials(const Haystack& haystack,
                                            const NeedleOptions& options) {
  if (options.lengths.empty() || options.depths.empty() || options.samples < 1) {
    return InvalidArgument("needles need at least one length, one depth and one sample");
  }
  for (const double depth : options.depths) {
    if (!(depth >= 0 && depth <= 1)) {
      return InvalidArgument("a needle's depth of ", depth, " is outside 0..1");
    }
  }
  TQ_ASSIGN_OR_RETURN(const std::vector<std::string> kinds, ChooseKinds(kKinds, options.kinds));
  std::vector<Trial> trials;
  const Maker maker = {haystack, options, &trials};
  for (const int64_t length : options.lengths) {
    for (size_t k = 0; k < std::size(kKinds); ++k) {
      const std::string kind = kKinds[k].name;
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) continue;
      for (int sample = 0; sample < options.samples; ++sample) {
        FactMaker facts(SeedOf(options.seed, kind, length, sample));
        TQ_RETURN_IF_ERROR(kMakers[k](maker, length, facts));
      }
    }
  }
  return trials;
}

Result<NeedleResult> RunNeedle(Responder& baseline, std::span<Responder* const> candidates,
                               const NeedleOptions& options) {
  NeedleResult result;
  TQ_ASSIGN_OR_RETURN(result.kinds, ChooseKinds(NeedleKinds(), options.kinds));
  TQ_ASSIGN_OR_RETURN(const Haystack haystack,
                      Haystack::For(baseline, options.run.form == AskForm::kChat, options.text_name,
                                    options.text, options.run.cancel));
  TQ_ASSIGN_OR_RETURN(std::vector<Trial> trials, MakeNeedleTrials(haystack, options));
  TQ_ASSIGN_OR_RETURN(result.trials,
                      RunTrials(baseline, candidates, std::move(trials), options.run));
  result.text_name = options.text_name;
  result.lengths = options.lengths;
  result.depths = options.depths;
  result.samples = options.samples;
  result.seed = options.seed;
  return result;
}

}  // namespace tq
