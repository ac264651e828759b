#include "runtime/evaluate/tasks/trial.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

namespace tq {
namespace {

using nlohmann::ordered_json;

bool IsWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
}

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Whether `word` stands in `text` with nothing of a word beside it; both in lower case.
bool HoldsWord(const std::string& text, const std::string& word) {
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) {
    const size_t end = at + word.size();
    if ((at == 0 || !IsWord(text[at - 1])) && (end == text.size() || !IsWord(text[end]))) {
      return true;
    }
  }
  return false;
}

std::string FirstWord(const std::string& text) {
  const auto begin = std::find_if(text.begin(), text.end(), IsWord);
  return {begin, std::find_if_not(begin, text.end(), IsWord)};
}

double ScoreValue(const Trial& trial, AskForm form, const std::string& answer) {
  const std::string said = Lower(answer), right = Lower(trial.expected.front());
  if (form == AskForm::kPrimed) return FirstWord(said) == right ? 1 : 0;
  if (!HoldsWord(said, right)) return 0;
  const bool hedged = std::any_of(trial.wrong.begin(), trial.wrong.end(),
                                  [&](const auto& wrong) { return HoldsWord(said, Lower(wrong)); });
  return hedged ? 0 : 1;
}

double ScoreAll(const Trial& trial, const std::string& answer) {
  const std::string said = Lower(answer);
  const auto found = std::count_if(trial.expected.begin(), trial.expected.end(),
                                   [&](const auto& word) { return HoldsWord(said, Lower(word)); });
  return static_cast<double>(found) / static_cast<double>(trial.expected.size());
}

// The share of the expected text that the answer begins with; in a chat, at the best place.
double ScoreCopy(const Trial& trial, AskForm form, const std::string& answer) {
  const std::string& right = trial.expected.front();
  size_t best = 0;
  for (size_t start = 0; start < answer.size(); ++start) {
    const size_t most = std::min(right.size(), answer.size() - start);
    if (most <= best) break;
    size_t same = 0;
    while (same < most && answer[start + same] == right[same]) ++same;
    best = std::max(best, same);
    if (form == AskForm::kPrimed) break;
  }
  return static_cast<double>(best) / static_cast<double>(right.size());
}

Tally TallyOutcomes(std::span<const Outcome* const> outcomes) {
  Tally t;
  for (const Outcome* outcome : outcomes) {
    ++t.trials;
    t.right += outcome->right() ? 1 : 0;
    t.mean_share += outcome->share;
  }
  t.interval = WilsonInterval(t.right, t.trials);
  if (t.trials == 0) return t;
  t.rate = static_cast<double>(t.right) / static_cast<double>(t.trials);
  t.mean_share /= static_cast<double>(t.trials);
  return t;
}

}  // namespace

Result<std::vector<std::string>> ChooseKinds(std::span<const TrialKind> known,
                                             const std::vector<std::string>& asked) {
  const auto names = [&](const std::string& name) {
    return std::any_of(known.begin(), known.end(),
                       [&](const TrialKind& kind) { return kind.name == name; });
  };
  for (const std::string& name : asked) {
    if (names(name)) continue;
    std::string list;
    for (const TrialKind& kind : known) list += StrCat(list.empty() ? "" : ", ", kind.name);
    return InvalidArgument("there is no kind '", name, "'; there are ", list);
  }
  std::vector<std::string> chosen;
  for (const TrialKind& kind : known) {
    if (asked.empty() || std::find(asked.begin(), asked.end(), kind.name) != asked.end()) {
      chosen.emplace_back(kind.name);
    }
  }
  return chosen;
}

ordered_json RequestOf(const Trial& trial, AskForm form) {
  ordered_json request;
  if (form == AskForm::kPrimed) {
    request["prompt"] = *trial.text + trial.primer;
  } else {
    request["messages"] = {{{"role", "user"}, {"content", *trial.text + "\n" + trial.question}}};
  }
  request["temperature"] = 0;
  // A chat may say a few words around the value.
  request["max_tokens"] = form == AskForm::kPrimed ? trial.max_tokens : trial.max_tokens + 48;
  return request;
}

double ScoreAnswer(const Trial& trial, AskForm form, const std::string& answer) {
  switch (trial.rule) {
    case ScoreRule::kValue: return ScoreValue(trial, form, answer);
    case ScoreRule::kAll: return ScoreAll(trial, answer);
    case ScoreRule::kCopy: return ScoreCopy(trial, form, answer);
  }
  return 0;
}

Result<TrialsResult> RunTrials(Responder& baseline, std::span<Responder* const> candidates,
                               std::vector<Trial> trials, const TrialOptions& options) {
  TrialsResult result;
  result.form = options.form;
  const size_t total = trials.size() * (1 + candidates.size());
  size_t done = 0;
  const auto run = [&](Responder& responder, std::vector<Outcome>* outcomes) -> Status {
    for (const Trial& trial : trials) {
      const Result<Reply> reply = Ask(responder, RequestOf(trial, options.form), options.cancel);
      if (!reply.ok()) {
        return reply.status().code() == StatusCode::kCancelled
                   ? reply.status()
                   : reply.status().WithContext(responder.name());
      }
      outcomes->push_back({reply->text, ScoreAnswer(trial, options.form, reply->text)});
      if (!ReportProgress(options.progress, ++done, total, trial.kind)) {
        return Cancelled("stopped after ", done, " of ", total, " questions");
      }
    }
    return OkStatus();
  };
  TQ_RETURN_IF_ERROR(run(baseline, &result.baseline_outcomes));
  result.baseline = baseline.name();
  for (Responder* candidate : candidates) {
    TQ_RETURN_IF_ERROR(run(*candidate, &result.candidate_outcomes.emplace_back()));
    result.candidates.push_back(candidate->name());
  }
  result.trials = std::move(trials);
  return result;
}

GroupTally TallyOf(const TrialsResult& result, const std::function<bool(const Trial&)>& wanted) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < result.trials.size(); ++i) {
    if (wanted(result.trials[i])) chosen.push_back(i);
  }
  const auto tally = [&](const std::vector<Outcome>& outcomes) {
    std::vector<const Outcome*> some;
    for (const size_t i : chosen) some.push_back(&outcomes[i]);
    return TallyOutcomes(some);
  };
  GroupTally group;
  group.baseline = tally(result.baseline_outcomes);
  group.informative = group.baseline.trials > 0 && group.baseline.mean_share >= kInformativeShare;
  for (const std::vector<Outcome>& outcomes : result.candidate_outcomes) {
    CandidateTally c;
    c.tally = tally(outcomes);
    for (const size_t i : chosen) {
      const bool before = result.baseline_outcomes[i].right(), now = outcomes[i].right();
      c.gained += now && !before ? 1 : 0;
      c.lost += before && !now ? 1 : 0;
    }
    c.difference = DifferenceOfShares(c.gained, c.lost, c.tally.trials);
    group.candidates.push_back(c);
  }
  return group;
}

GroupTally TallyOfKind(const TrialsResult& result, const std::string& kind) {
  return TallyOf(result, [&](const Trial& t) { return t.kind == kind; });
}

GroupTally TallyOfInformative(const TrialsResult& result) {
  std::vector<std::string> informative;
  for (const std::string& kind : KindsOf(result)) {
    if (TallyOfKind(result, kind).informative) informative.push_back(kind);
  }
  return TallyOf(result, [&](const Trial& t) {
    return std::find(informative.begin(), informative.end(), t.kind) != informative.end();
  });
}

std::vector<std::string> KindsOf(const TrialsResult& result) {
  std::vector<std::string> kinds;
  for (const Trial& t : result.trials) {
    if (std::find(kinds.begin(), kinds.end(), t.kind) == kinds.end()) kinds.push_back(t.kind);
  }
  return kinds;
}

}  // namespace tq
