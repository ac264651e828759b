#include "runtime/evaluate/tasks/generations.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <utility>

#include "runtime/evaluate/tasks/facts.h"
#include "runtime/evaluate/tasks/repetition.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

using Vector = std::vector<float>;

// What one answer is compared by.
struct Answer {
  std::string text;
  Vector vector;
  Facts facts;
  std::vector<Vector> quarters;  // empty: too short, or not a long answer
};

// A value for each prompt that has one.
struct Pairs {
  std::vector<double> candidate, baseline;  // of Contrast: the floor
  void Add(double c, double b) {
    candidate.push_back(c);
    baseline.push_back(b);
  }
};

struct Samples {
  Pairs similarity, facts, right, repetition, words, drift;
  std::array<Pairs, 4> by_quarter;
  std::vector<double> same_answers;
};

// Mean of f over pairs of different seeds: (c_i, a_j), or of a with itself. Values that are missing
// do not count.
template <typename Fn>
std::optional<double> MeanOverPairs(const std::vector<Answer>& x, const std::vector<Answer>& y,
                                    const Fn& f) {
  double sum = 0;
  int count = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < y.size(); ++j) {
      if (i == j) continue;
      const std::optional<double> value = f(x[i], y[j]);
      if (!value) continue;
      sum += *value;
      ++count;
    }
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

template <typename Fn>
void AddContrast(const std::vector<Answer>& candidate, const std::vector<Answer>& baseline,
                 const Fn& f, Pairs* pairs) {
  const std::optional<double> measured = MeanOverPairs(candidate, baseline, f);
  const std::optional<double> floor = MeanOverPairs(baseline, baseline, f);
  if (measured && floor) pairs->Add(*measured, *floor);
}

template <typename Fn>
void AddVersus(const std::vector<Answer>& candidate, const std::vector<Answer>& baseline,
               const Fn& f, Pairs* pairs) {
  const auto mean = [&](const std::vector<Answer>& answers) {
    double sum = 0;
    for (const Answer& answer : answers) sum += f(answer);
    return sum / static_cast<double>(answers.size());
  };
  pairs->Add(mean(candidate), mean(baseline));
}

int64_t CountWords(const std::string& text) {
  std::istringstream words(text);
  int64_t count = 0;
  for (std::string word; words >> word;) ++count;
  return count;
}

std::optional<double> MeaningOf(const Answer& a, const Answer& b) {
  if (a.text.empty() != b.text.empty()) return 0.0;
  return CosineOfUnitVectors(a.vector, b.vector);
}

double DriftOf(const Answer& a) {
  return 1 - CosineOfUnitVectors(a.quarters[0], a.quarters[3]);
}

bool HaveQuarters(const std::vector<Answer>& answers) {
  return std::all_of(answers.begin(), answers.end(),
                     [](const Answer& a) { return !a.quarters.empty(); });
}

void AddSamples(const Prompt& prompt, const std::vector<Answer>& candidate,
                const std::vector<Answer>& baseline, Samples* samples) {
  AddContrast(candidate, baseline, MeaningOf, &samples->similarity);
  AddContrast(
      candidate, baseline,
      [](const Answer& a, const Answer& b) { return FactAgreement(a.facts, b.facts); },
      &samples->facts);
  double same = 0;
  for (size_t i = 0; i < candidate.size(); ++i) same += candidate[i].text == baseline[i].text;
  samples->same_answers.push_back(same / static_cast<double>(candidate.size()));
  if (!prompt.expected.empty()) {
    const auto right = [&](const Answer& a) {
      return a.text.find(prompt.expected) == std::string::npos ? 0.0 : 1.0;
    };
    AddVersus(candidate, baseline, right, &samples->right);
  }
  const auto repetition = [](const Answer& a) { return RepeatedShare(a.text); };
  AddVersus(candidate, baseline, repetition, &samples->repetition);
  const auto words = [](const Answer& a) { return static_cast<double>(CountWords(a.text)); };
  AddVersus(candidate, baseline, words, &samples->words);
  if (prompt.group != PromptGroup::kLongAnswer) return;
  if (!HaveQuarters(candidate) || !HaveQuarters(baseline)) return;
  AddVersus(candidate, baseline, DriftOf, &samples->drift);
  for (size_t q = 0; q < 4; ++q) {
    AddContrast(
        candidate, baseline,
        [q](const Answer& a, const Answer& b) -> std::optional<double> {
          return CosineOfUnitVectors(a.quarters[q], b.quarters[q]);
        },
        &samples->by_quarter[q]);
  }
}

// T: Contrast or Versus, whose second mean has another name.
template <typename T>
T Summary(const Pairs& pairs, double T::*second, uint64_t seed) {
  T out;
  out.prompts = static_cast<int64_t>(pairs.candidate.size());
  out.candidate = Mean(pairs.candidate);
  out.*second = Mean(pairs.baseline);
  std::vector<double> differences;
  for (size_t i = 0; i < pairs.candidate.size(); ++i) {
    differences.push_back(pairs.candidate[i] - pairs.baseline[i]);
  }
  out.difference = Mean(differences);
  if (out.prompts >= 2) out.interval = BootstrapMeanInterval(differences, seed);
  return out;
}

GenerationsGroup Summary(const Samples& samples, uint64_t seed) {
  GenerationsGroup group;
  group.prompts = static_cast<int64_t>(samples.same_answers.size());
  group.similarity = Summary(samples.similarity, &Contrast::floor, seed);
  group.facts = Summary(samples.facts, &Contrast::floor, seed);
  group.same_answers = Mean(samples.same_answers);
  group.right = Summary(samples.right, &Versus::baseline, seed);
  group.repetition = Summary(samples.repetition, &Versus::baseline, seed);
  group.words = Summary(samples.words, &Versus::baseline, seed);
  group.drift = Summary(samples.drift, &Versus::baseline, seed);
  for (size_t q = 0; q < 4; ++q) {
    group.by_quarter[q] = Summary(samples.by_quarter[q], &Contrast::floor, seed);
  }
  return group;
}

Status CheckOptions(const GenerationsOptions& options) {
  constexpr int kMost = 16;
  if (options.prompts.empty()) return InvalidArgument("no prompts to generate from");
  if (options.generations < 2 || options.generations > kMost) {
    return InvalidArgument(options.generations, " generations of a prompt; 2 to ", kMost,
                           " are possible, and 3 to 5 make sense");
  }
  if (!(options.temperature >= 0 && options.temperature <= 2)) {
    return InvalidArgument("a temperature of ", options.temperature, "; 0 to 2 is possible");
  }
  return OkStatus();
}

class Asker {
 public:
  Asker(const TextEmbedder& embedder, const GenerationsOptions& options)
      : embedder_(embedder), options_(options) {}

  // Answers to prompt `index`; `before` answers were asked for before these.
  Result<std::vector<Answer>> Ask(Responder& responder, size_t index, size_t before) const {
    const Prompt& prompt = options_.prompts[index];
    const auto per_prompt = static_cast<size_t>(options_.generations);
    nlohmann::ordered_json request = prompt.request;
    request["temperature"] = options_.temperature;
    // Small enough for every server's integers.
    uint64_t state = options_.seed + index * 1000;
    const uint64_t seed = SplitMix64(state) >> 34;
    const size_t at_once = responder.answers_together() ? per_prompt : 1;
    if (at_once > 1) request["n"] = at_once;
    std::vector<Answer> answers;
    while (answers.size() < per_prompt) {
      request["seed"] = seed + answers.size();
      TQ_ASSIGN_OR_RETURN(const nlohmann::ordered_json response,
                          responder.Respond(request, options_.cancel));
      TQ_ASSIGN_OR_RETURN(const std::vector<Reply> replies, ParseReplies(response));
      for (const Reply& reply : std::span(replies).first(std::min(at_once, replies.size()))) {
        TQ_ASSIGN_OR_RETURN(Answer answer, Read(reply.text, prompt.group));
        answers.push_back(std::move(answer));
      }
      if (!ReportProgress(options_.progress, before + answers.size(),
                          options_.prompts.size() * 2 * per_prompt, "answers")) {
        return Status(StatusCode::kCancelled, "stopped while generating");
      }
    }
    return answers;
  }

 private:
  Result<Answer> Read(const std::string& text, PromptGroup group) const {
    Answer answer;
    answer.text = options_.redact ? options_.redact(text) : text;
    answer.facts = FindFacts(answer.text);
    TQ_ASSIGN_OR_RETURN(answer.vector, embedder_.Embed(answer.text));
    if (group != PromptGroup::kLongAnswer) return answer;
    for (const std::string& part : Quarters(answer.text)) {
      TQ_ASSIGN_OR_RETURN(Vector vector, embedder_.Embed(part));
      answer.quarters.push_back(std::move(vector));
    }
    return answer;
  }

  const TextEmbedder& embedder_;
  const GenerationsOptions& options_;
};

std::vector<Facts> FactsOf(const std::vector<Answer>& answers) {
  std::vector<Facts> all;
  for (const Answer& answer : answers) all.push_back(answer.facts);
  return all;
}

// Mean similarity of first answers to different prompts.
double Unrelated(const std::vector<Vector>& firsts) {
  std::vector<double> values;
  for (size_t i = 0; i < firsts.size(); ++i) {
    for (size_t j = i + 1; j < firsts.size(); ++j) {
      values.push_back(CosineOfUnitVectors(firsts[i], firsts[j]));
    }
  }
  return Mean(values);
}

void Judge(GenerationsResult* result) {
  constexpr double kLeastAboveUnrelated = 0.1;
  const double floor = result->all.similarity.floor;
  if (floor >= result->unrelated + kLeastAboveUnrelated) return;
  result->informative = false;
  std::ostringstream note;
  note.precision(2);
  note << std::fixed << "the plain model's answers to one prompt are hardly nearer to each other ("
       << floor << ") than its answers to different prompts (" << result->unrelated
       << "): its answers say too little to be compared";
  result->note = note.str();
}

}  // namespace

Result<GenerationsResult> RunGenerations(Responder& baseline, Responder& candidate,
                                         const TextEmbedder& embedder,
                                         const GenerationsOptions& options) {
  TQ_RETURN_IF_ERROR(CheckOptions(options));
  GenerationsResult result;
  result.baseline_name = baseline.name();
  result.candidate_name = candidate.name();
  result.embeddings_name = options.embeddings_name;
  result.generations = options.generations;
  result.temperature = options.temperature;
  result.seed = options.seed;

  const Asker asker(embedder, options);
  Samples all;
  std::array<Samples, kNumPromptGroups> groups;
  std::vector<Vector> firsts;
  int64_t baseline_answered = 0;
  for (size_t index = 0; index < options.prompts.size(); ++index) {
    const Prompt& prompt = options.prompts[index];
    GenerationsCase one{.prompt = prompt};
    const size_t before = index * 2 * static_cast<size_t>(options.generations);
    const Result<std::vector<Answer>> of_baseline = asker.Ask(baseline, index, before);
    const Result<std::vector<Answer>> of_candidate =
        of_baseline.ok() ? asker.Ask(candidate, index, before + options.generations) : of_baseline;
    baseline_answered += of_baseline.ok();
    if (!of_candidate.ok()) {
      if (!IsErrorOfOneRequest(of_candidate.status())) return of_candidate.status();
      one.error = of_candidate.status().message();
      if (options.redact) one.error = options.redact(one.error);
      ++result.failed;
      result.cases.push_back(std::move(one));
      continue;
    }
    for (Samples* samples : {&all, &groups[static_cast<size_t>(prompt.group)]}) {
      AddSamples(prompt, *of_candidate, *of_baseline, samples);
    }
    one.similarity = all.similarity.candidate.back();
    one.floor = all.similarity.baseline.back();
    const Facts of_plain = Union(FactsOf(*of_baseline)), of_other = Union(FactsOf(*of_candidate));
    one.lost = FactsOnlyIn(of_plain, of_other);
    one.added = FactsOnlyIn(of_other, of_plain);
    for (const Answer& answer : *of_baseline) one.baseline.push_back(answer.text);
    for (const Answer& answer : *of_candidate) one.candidate.push_back(answer.text);
    firsts.push_back(of_baseline->front().vector);
    result.cases.push_back(std::move(one));
  }
  if (firsts.empty()) {
    return InvalidArgument("none of the ", options.prompts.size(),
                           " prompts was answered; the first: ", result.cases.front().error);
  }
  result.answered_share =
      static_cast<double>(firsts.size()) / static_cast<double>(baseline_answered);
  result.all = Summary(all, options.seed);
  for (size_t g = 0; g < groups.size(); ++g) result.groups[g] = Summary(groups[g], options.seed);
  result.unrelated = Unrelated(firsts);
  Judge(&result);
  return result;
}

std::string FailureOf(const GenerationsResult& result, const std::optional<double>& max_loss) {
  std::ostringstream why;
  why.precision(3);
  if (result.answered_share < kLeastAnswered) {
    why << "the candidate answered " << 100 * result.answered_share
        << " % of the prompts that the baseline answers; at least " << 100 * kLeastAnswered
        << " % are needed to judge it";
    return why.str();
  }
  if (!max_loss) return "";
  if (!result.informative) return "not informative, so no loss can be told: " + result.note;
  const std::optional<Interval>& range = result.all.similarity.interval;
  if (!range) return "a single prompt has no range to judge by";
  if (range->high >= -*max_loss) return "";
  why << "the difference in meaning is at most " << range->high << ", below --max-loss "
      << *max_loss;
  return why.str();
}

}  // namespace tq
