#include "runtime/evaluate/tasks/adversarial.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "runtime/evaluate/page.h"
#include "runtime/evaluate/section.h"
#include "runtime/evaluate/tasks/fact_maker.h"
#include "runtime/evaluate/tasks/trial_report.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

constexpr int kDigits = 3;                 // few, so that small models copy them
constexpr double kDistractorsDepth = 0.4;  // of a block of facts in the text

constexpr TrialKind kKinds[] = {
    {"near_duplicates", "passwords of gates whose names differ in one word; each is asked for"},
    {"contradictions", "half of the passwords are corrected later on; the valid one is asked for"},
    {"distractors", "facts of one form stand close together; some are asked for"},
    {"copy_code", "one of several similar functions is copied, character by character"},
    {"copy_json", "one of several similar JSON records is copied, character by character"},
    {"patterns", "a long repeated list of words goes on, exactly"},
};

// What makes a level hard: how many look-alikes a text holds, as far as there is room, and whether
// they are numbers, which small models find and then copy with a wrong digit.
struct LevelSizes {
  const char* name;
  bool words;                        // of CommonNouns
  size_t wings, colors, most_gates;  // near_duplicates: a password for each combination
  size_t most_facts;                 // distractors
};
constexpr LevelSizes kLevels[] = {{"easy", true, 2, 2, 1, 6}, {"hard", false, 4, 2, 40, SIZE_MAX}};

struct Maker {
  const Haystack& haystack;
  const AdversarialOptions& options;
  std::vector<Trial>* trials;

  AskedLength asked() const { return {options.length, options.length_flag}; }
  size_t count() const { return static_cast<size_t>(options.questions); }
  const LevelSizes& level() const { return kLevels[static_cast<size_t>(options.level)]; }
  // Passwords, no two the same.
  std::vector<std::string> Values(FactMaker& facts, size_t values, int digits = kDigits) const {
    if (level().words) return facts.Some(CommonNouns(), values);
    std::vector<std::string> numbers;
    while (numbers.size() < values) numbers.push_back(facts.Number(digits));
    return numbers;
  }
  // Tokens for the text when the longest of `questions` is put behind it.
  int64_t Room(const std::vector<Trial>& questions) const {
    int64_t longest = 0;
    for (const Trial& q : questions) {
      longest = std::max({longest, haystack.Count(q.primer), haystack.Count(q.question)});
    }
    return options.length - longest;
  }
  void Add(const char* kind, std::string text, std::vector<Trial> questions) const {
    const auto shared = std::make_shared<const std::string>(std::move(text));
    for (Trial& q : questions) {
      q.kind = kind;
      q.length = options.length;
      q.text = shared;
      trials->push_back(std::move(q));
    }
  }
  Status Plant(const char* kind, const std::vector<PlantedLine>& planted,
               std::vector<Trial> questions) const {
    TQ_ASSIGN_OR_RETURN(std::string text, haystack.Build(Room(questions), planted, asked()));
    Add(kind, std::move(text), std::move(questions));
    return OkStatus();
  }
};

// Every place between 0 and 1, at the middle of its share.
double Depth(size_t index, size_t count) {
  return (static_cast<double>(index) + 0.5) / static_cast<double>(count);
}

// All other answers of the same text are wrong ones.
void SetWrong(std::vector<Trial>* questions, const std::vector<std::string>& values) {
  for (Trial& q : *questions) {
    for (const std::string& value : values) {
      if (value != q.expected.front()) q.wrong.push_back(value);
    }
  }
}

Status MakeNearDuplicates(const Maker& m, FactMaker& facts) {
  constexpr const char* kWings[] = {"north", "south", "east", "west"};
  constexpr const char* kColors[] = {"red", "blue"};
  const LevelSizes& level = m.level();
  // As many gates as there is room for in a quarter of the text.
  const std::string sample = "The password of the red gate 10 in the north wing is 12345.\n";
  const auto room = static_cast<size_t>(m.options.length / 4 / m.haystack.Count(sample));
  const size_t gates = std::clamp<size_t>(room / (level.wings * level.colors), 1, level.most_gates);
  std::vector<std::string> primers;
  for (size_t gate = 0; gate < gates; ++gate) {
    for (const char* wing : std::span(kWings).first(level.wings)) {
      for (const char* color : std::span(kColors).first(level.colors)) {
        primers.push_back(fmt::format("The password of the {} gate {} in the {} wing is", color,
                                      10 + gate, wing));
      }
    }
  }
  facts.Shuffle(&primers);
  const std::vector<std::string> values = m.Values(facts, primers.size());
  std::vector<PlantedLine> planted;
  for (size_t i = 0; i < primers.size(); ++i) {
    planted.push_back({Depth(i, primers.size()), primers[i] + " " + values[i] + "."});
  }
  std::vector<Trial> questions;
  const size_t asked = std::min(m.count(), primers.size());
  for (size_t i = 0; i < asked; ++i) {
    const size_t at = i * primers.size() / asked;
    Trial t;
    t.primer = primers[at];
    t.question =
        "Complete the sentence with the password from the text, and answer with the password "
        "only: " +
        t.primer + " ...";
    t.expected = {values[at]};
    questions.push_back(std::move(t));
  }
  SetWrong(&questions, values);
  return m.Plant("near_duplicates", planted, std::move(questions));
}

Status MakeContradictions(const Maker& m, FactMaker& facts) {
  const size_t count = std::min(
      {m.count(), CityNames().size(), m.level().words ? CommonNouns().size() / 2 : SIZE_MAX});
  std::vector<PlantedLine> planted;
  std::vector<Trial> questions;
  const std::vector<std::string> cities = facts.Some(CityNames(), count);
  const std::vector<std::string> values = m.Values(facts, 2 * count);
  for (size_t i = 0; i < count; ++i) {
    const std::string primer = "The password of the city of " + cities[i] + " is";
    const std::string &first = values[2 * i], &second = values[2 * i + 1];
    planted.push_back({0.5 * Depth(i, count), primer + " " + first + "."});
    const bool corrected = i % 2 == 0;  // the others check that the first is still found
    if (corrected) {
      planted.push_back({0.6 + 0.35 * Depth(i, count),
                         "Correction: " + primer + " " + second + ". The earlier one was wrong."});
    }
    Trial t;
    t.primer = "After all corrections: " + primer;
    t.question = "What is the password of the city of " + cities[i] +
                 " after all corrections? Answer with the password only.";
    t.expected = {corrected ? second : first};
    if (corrected) t.wrong = {first};
    questions.push_back(std::move(t));
  }
  return m.Plant("contradictions", planted, std::move(questions));
}

Status MakeDistractors(const Maker& m, FactMaker& facts) {
  // Names of two words are enough for thousands of facts.
  const size_t most = m.level().most_facts;
  const std::span<const char* const> nouns = CommonNouns();
  std::vector<std::string> names;
  if (most <= CityNames().size()) {
    names = facts.Some(CityNames(), most);
  } else {
    for (const char* a : nouns) {
      for (const char* b : nouns) {
        if (a != b) names.push_back(fmt::format("{}-{}", a, b));
      }
    }
    facts.Shuffle(&names);
  }
  const auto fact = [](const std::string& name) { return "The password of " + name + " is"; };
  const auto ask = [&](const std::string& name) {
    Trial t;
    t.primer = fact(name);
    t.question = "What is the password of " + name + "? Answer with the password only.";
    return t;
  };
  const int64_t room = m.Room({ask("whistle-feather")});
  // More than there is room for; as many different numbers.
  constexpr size_t kFew = 400;
  names.resize(std::min(
      names.size(), static_cast<size_t>(std::max<int64_t>(room, 0) / m.haystack.Count(fact("")))));
  std::vector<std::string> values =
      m.Values(facts, names.size(), names.size() < kFew ? kDigits : 5);
  std::vector<PlantedLine> planted;
  for (int64_t used = 0; planted.size() < names.size();) {
    const std::string line = fact(names[planted.size()]) + " " + values[planted.size()] + ".";
    used += m.haystack.Count(line + "\n");
    if (used > room) break;
    planted.push_back({kDistractorsDepth, line});
  }
  values.resize(planted.size());
  if (values.empty()) {
    return TooShort(
        m.asked(),
        m.options.length - room + m.haystack.Count(fact("whistle-feather") + " whistle.\n"),
        "distractors holds no fact");
  }
  std::vector<Trial> questions;
  const size_t asked = std::min(m.count(), values.size());
  for (size_t i = 0; i < asked; ++i) {
    const size_t at = (2 * i + 1) * values.size() / (2 * asked);
    Trial t = ask(names[at]);
    t.expected = {values[at]};
    t.depth = Depth(at, values.size());
    questions.push_back(std::move(t));
  }
  SetWrong(&questions, values);
  // Nothing but facts where they fill the text.
  if (values.size() < names.size()) {
    std::string text;
    for (const PlantedLine& p : planted) text += p.line + "\n";
    m.Add("distractors", std::move(text), std::move(questions));
    return OkStatus();
  }
  return m.Plant("distractors", planted, std::move(questions));
}

// A text that begins with `head`, which the question gives, and goes on with `tail`.
struct Block {
  std::string name, head, tail;
};

Block CodeBlock(FactMaker& facts) {
  const std::vector<std::string> n = facts.Some(CommonNouns(), 5);
  Block b;
  b.name = fmt::format("{}_{}", n[0], n[1]);
  b.head = fmt::format("def {}({}, {}):\n    {} = {} * {} + {}\n", b.name, n[2], n[3], n[4], n[2],
                       facts.AnyNumber(3), facts.AnyNumber(4));
  b.tail = fmt::format(
      "    if {} > {} and {} != {}:\n        return {} - {}\n    return \"{}\", {}\n", n[3],
      facts.AnyNumber(3), n[4], facts.AnyNumber(4), n[4], n[3], n[0], facts.AnyNumber(3));
  return b;
}

Block JsonBlock(FactMaker& facts) {
  const std::vector<std::string> n = facts.Some(CommonNouns(), 4);
  Block b;
  b.name = facts.Number(6);
  b.head = fmt::format("{{\"id\": {}, \"name\": \"{}-{}\", ", b.name, n[0], n[1]);
  b.tail = fmt::format("\"size\": [{}, {}], \"tags\": [\"{}\", \"{}\"], \"code\": \"{}\"}}\n",
                       facts.AnyNumber(3), facts.AnyNumber(3), n[2], n[3], facts.AnyNumber(5));
  return b;
}

Status MakeCopies(const Maker& m, FactMaker& facts, const char* kind, const char* title,
                  const char* thing, Block (*make)(FactMaker&)) {
  std::vector<PlantedLine> planted;
  std::vector<Trial> questions;
  for (size_t i = 0; i < m.count(); ++i) {
    const Block block = make(facts);
    // Its title stands before it in the text as in the question.
    const std::string begin = fmt::format("{} {}:\n{}", title, block.name, block.head);
    planted.push_back({Depth(i, m.count()), begin + block.tail.substr(0, block.tail.size() - 1)});
    Trial t;
    t.depth = planted.back().depth;
    t.rule = ScoreRule::kCopy;
    t.primer = begin;
    // White space belongs to the token that follows: a primer that ends in it would split that.
    const size_t end = t.primer.find_last_not_of(" \n") + 1;
    const std::string tail = t.primer.substr(end) + block.tail;
    t.primer.resize(end);
    t.question = fmt::format(
        "Copy the {} {} from the text, character by character, on {}. Answer "
        "with it only.",
        thing, block.name,
        std::count(block.tail.begin(), block.tail.end(), '\n') > 1 ? "the same lines" : "one line");
    t.expected = {m.options.run.form == AskForm::kChat ? block.head + block.tail : tail};
    t.expected.front().erase(t.expected.front().find_last_not_of('\n') + 1);
    t.max_tokens = static_cast<int>(m.haystack.Count(t.expected.front())) + 8;
    questions.push_back(std::move(t));
  }
  return m.Plant(kind, planted, std::move(questions));
}

Status MakeCopyCode(const Maker& m, FactMaker& facts) {
  return MakeCopies(m, facts, "copy_code", "# Function", "function", CodeBlock);
}

Status MakeCopyJson(const Maker& m, FactMaker& facts) {
  return MakeCopies(m, facts, "copy_json", "Record", "JSON record with the id", JsonBlock);
}

Status MakePatterns(const Maker& m, FactMaker& facts) {
  // One list of words again and again, with commas, without which small models begin to tell
  // stories; the answer is the next words. Each question has a list of another length; texts are
  // short, so that there can be many.
  constexpr size_t kNext = 12;
  for (size_t i = 0; i < m.count(); ++i) {
    const std::vector<std::string> words = facts.Some(CommonNouns(), 5 + 5 * (i % 6));
    Trial t;
    t.rule = ScoreRule::kCopy;
    t.question = fmt::format(
        "Which {} words come next in this list? Go on with exactly these words, "
        "separated by commas.",
        kNext);
    const int64_t whole = m.Room({t}), room = whole / 2;
    std::string text;
    size_t at = 0;
    const auto next = [&] {
      const std::string comma = at == 0 ? "" : ", ";
      return comma + words[at++ % words.size()];
    };
    int64_t per_round = 0;
    for (const std::string& word : words) per_round += m.haystack.Count(", " + word);
    // Ends somewhere inside a round.
    const auto steps =
        static_cast<size_t>(room / per_round) * words.size() - facts.Below(words.size());
    if (room < 3 * per_round) {
      return TooShort(m.asked(), m.options.length - whole + 6 * per_round,
                      "patterns has a list that comes three times in half of the text");
    }
    for (size_t s = 0; s < steps; ++s) text += next();
    std::string expected;
    for (size_t s = 0; s < kNext; ++s) expected += next();
    if (m.options.run.form == AskForm::kChat) expected.erase(0, 2);
    t.max_tokens = static_cast<int>(m.haystack.Count(expected)) + 8;
    t.expected = {std::move(expected)};
    m.Add("patterns", std::move(text), {std::move(t)});
  }
  return OkStatus();
}

using MakeKind = Status (*)(const Maker& m, FactMaker& facts);
constexpr MakeKind kMakers[] = {MakeNearDuplicates, MakeContradictions, MakeDistractors,
                                MakeCopyCode,       MakeCopyJson,       MakePatterns};
static_assert(std::size(kMakers) == std::size(kKinds));

}  // namespace

std::span<const TrialKind> AdversarialKinds() {
  return kKinds;
}

Result<std::vector<Trial>> MakeAdversarialTrials(const Haystack& haystack,
                                                 const AdversarialOptions& options) {
  TQ_ASSIGN_OR_RETURN(const std::vector<std::string> kinds, ChooseKinds(kKinds, options.kinds));
  if (options.questions < 1) {
    return InvalidArgument("questions = ", options.questions, ": expected 1 or more of each kind");
  }
  std::vector<Trial> trials;
  const Maker maker = {haystack, options, &trials};
  for (size_t k = 0; k < std::size(kKinds); ++k) {
    if (std::find(kinds.begin(), kinds.end(), kKinds[k].name) == kinds.end()) continue;
    FactMaker facts(SeedOf(options.seed, kKinds[k].name, options.length, 0));
    TQ_RETURN_IF_ERROR(kMakers[k](maker, facts));
  }
  return trials;
}

Result<AdversarialResult> RunAdversarial(Responder& baseline,
                                         std::span<Responder* const> candidates,
                                         const AdversarialOptions& options) {
  AdversarialResult result;
  TQ_ASSIGN_OR_RETURN(result.kinds, ChooseKinds(kKinds, options.kinds));
  TQ_ASSIGN_OR_RETURN(const Haystack haystack,
                      Haystack::For(baseline, options.run.form == AskForm::kChat, options.text_name,
                                    options.text, options.run.cancel));
  TQ_ASSIGN_OR_RETURN(std::vector<Trial> trials, MakeAdversarialTrials(haystack, options));
  TQ_ASSIGN_OR_RETURN(result.trials,
                      RunTrials(baseline, candidates, std::move(trials), options.run));
  result.text_name = options.text_name;
  result.level = options.level;
  result.length = options.length;
  result.seed = options.seed;
  return result;
}

nlohmann::ordered_json AdversarialJson(const AdversarialResult& result) {
  nlohmann::ordered_json j = {{"evaluation", "adversarial"},
                              {"text", result.text_name},
                              {"level", kLevels[static_cast<size_t>(result.level)].name},
                              {"length", result.length},
                              {"seed", result.seed}};
  j.update(TrialsJson(result.trials));
  return j;
}

std::string AdversarialSection(const AdversarialResult& result) {
  return SectionHead("Adversarial texts") +
         SectionText(fmt::format(
             "{} that a cache which blurs details gets wrong, over texts of {} tokens, "
             "{}, at temperature 0. A copy is right when every character is.",
             FormatCount(static_cast<int64_t>(result.trials.trials.size()), "question"),
             FormatCount(result.length),
             result.trials.form == AskForm::kPrimed ? "put as the beginning of their answer"
                                                    : "put in a chat")) +
         TrialsHtml(result.trials, AdversarialKinds());
}

}  // namespace tq
