// Needles and adversarial texts: what is asked, and how it is scored and counted.
#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <sstream>

#include "runtime/evaluate/tasks/adversarial.h"
#include "runtime/evaluate/tasks/fact_maker.h"
#include "runtime/evaluate/tasks/needle.h"
#include "runtime/evaluate/tasks/prompts.h"
#include "runtime/evaluate/tasks/responder_for_test.h"
#include "runtime/evaluate/tasks/trial_report.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

std::string LongText() {
  std::string text;
  for (int i = 0; i < 600; ++i) text += "Line " + std::to_string(i) + " of a text about nothing.\n";
  return text;
}

Result<Haystack> Hay() {
  return Haystack::Create("text.txt", LongText(), [](std::string_view text) {
    return static_cast<int64_t>(text.size() / 4 + 1);
  });
}

// Goes on as the text went on where the prompt's last line stood before: what a model with a
// perfect memory does. `from` and `sees` limit which part of the prompt it remembers.
FakeResponder::Answer Remembering(double sees) {
  return [sees](const ordered_json& body) -> Result<ordered_json> {
    const std::string prompt = body["prompt"];
    const size_t line = prompt.rfind('\n', prompt.size() - 2) + 1;
    const std::string last = prompt.substr(line);
    const auto end = static_cast<size_t>(sees * static_cast<double>(line));
    const size_t at = prompt.substr(0, end).find(last);
    const std::string answer =
        at == std::string::npos ? "nothing" : prompt.substr(at + last.size(), 400);
    return ordered_json{{"text", answer}, {"finish_reason", "length"}};
  };
}

NeedleOptions Options() {
  NeedleOptions options;
  options.text_name = "text.txt";
  options.text = LongText();
  options.lengths = {6000, 9000};  // bytes: the fake's tokenizer has a token for each
  return options;
}

TEST(Needle, APerfectMemoryFindsAllAndHalfAMemoryTheFirstHalf) {
  FakeResponder whole("f16", true, Remembering(1)), half("half", true, Remembering(0.6));
  Responder* const candidates[] = {&half};
  NeedleOptions options = Options();
  options.kinds = {"multi_key", "single"};
  const auto result = RunNeedle(whole, candidates, options);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->kinds, (std::vector<std::string>{"single", "multi_key"}));
  const GroupTally single = TallyOfKind(result->trials, "single");
  EXPECT_EQ(single.baseline.trials, 10);
  EXPECT_EQ(single.baseline.right, 10);
  EXPECT_TRUE(single.informative);
  for (const double depth : options.depths) {
    const GroupTally cell = TallyOf(result->trials, [&](const Trial& t) {
      return t.kind == "single" && t.depth == depth && t.length == 9000;
    });
    EXPECT_EQ(cell.candidates[0].tally.right, depth < 0.6 ? 1 : 0) << depth;
  }
  EXPECT_EQ(single.candidates[0].lost, 4);
  EXPECT_NEAR(single.candidates[0].difference.difference, -0.4, 1e-12);
  EXPECT_LT(TallyOfInformative(result->trials).candidates[0].difference.interval.high, 0);
  const ordered_json j = NeedleJson(*result);
  EXPECT_EQ(j["informative"], true);
  EXPECT_EQ(j["candidate"], "half");
  EXPECT_EQ(j["by_kind"]["single"]["lost"], 4);
  EXPECT_EQ(j["by_kind"]["multi_key"]["questions"], 30);
  EXPECT_EQ(j["grid"].size(), 2u * 2 * 5);
  EXPECT_LT(j["difference"], -0.3);
  const std::string verdict = TrialsVerdict(result->trials);
  EXPECT_EQ(verdict.find("half gets "), 0u) << verdict;
  EXPECT_NE(verdict.find("of 40 questions right where f16 gets 40: "), std::string::npos)
      << verdict;
  EXPECT_NE(verdict.find("worse, beyond chance."), std::string::npos) << verdict;
  EXPECT_FALSE(j["parted"].empty());
}

TEST(Needle, WhatTheBaselineCannotDoIsNotInformative) {
  FakeResponder none("f16", true, Remembering(0)), whole("other", true, Remembering(1));
  Responder* const candidates[] = {&whole};
  NeedleOptions options = Options();
  options.kinds = {"single"};
  const auto result = RunNeedle(none, candidates, options);
  ASSERT_TRUE(result.ok());
  const ordered_json j = NeedleJson(*result);
  EXPECT_EQ(j["informative"], false);
  EXPECT_EQ(j["note"], "not informative, because f16 itself fails there: single (0 of 10)");
  EXPECT_EQ(j["informative_questions"], 0);
  const std::string section = NeedleSection(*result);
  EXPECT_NE(section.find("not informative"), std::string::npos);
  // Nothing was lost there, so nothing is red.
  EXPECT_NE(section.find("background:#c4cad3;color:#12161c\">0/1"), std::string::npos);
  EXPECT_EQ(section.find("background:hsl"), std::string::npos);
  EXPECT_EQ(TrialsVerdict(result->trials),
            "Not informative: f16 itself fails at every kind of question.");
}

TEST(Needle, TextsFitTheirLengthAndRepeatWithTheSeed) {
  const Result<Haystack> hay = Hay();
  ASSERT_TRUE(hay.ok());
  NeedleOptions options;
  options.lengths = {2000, 3000};
  const auto trials = MakeNeedleTrials(*hay, options), again = MakeNeedleTrials(*hay, options);
  options.seed = 1;
  const auto other = MakeNeedleTrials(*hay, options);
  ASSERT_TRUE(trials.ok() && again.ok() && other.ok()) << trials.status().ToString();
  std::set<std::string> kinds;
  int different = 0;
  for (size_t i = 0; i < trials->size(); ++i) {
    const Trial& t = (*trials)[i];
    kinds.insert(t.kind);
    EXPECT_LE(hay->Count(*t.text + t.primer), t.length) << t.kind;
    // A list of words is counted word by word, which rounds up for each.
    EXPECT_GT(hay->Count(*t.text + t.question), t.length * (t.kind == "common_words" ? 6 : 8) / 10)
        << t.kind;
    EXPECT_EQ(*t.text + t.primer, *(*again)[i].text + (*again)[i].primer);
    different += *t.text != *(*other)[i].text ? 1 : 0;
    // What is expected stands in the text, once for each place.
    for (const std::string& value : t.expected) {
      EXPECT_NE(t.text->find(value), std::string::npos) << t.kind;
    }
    if (t.depth >= 0 && t.kind == "single") {
      const double at = static_cast<double>(t.text->find(t.expected.front()));
      EXPECT_NEAR(at / static_cast<double>(t.text->size()), t.depth, 0.05);
    }
  }
  EXPECT_EQ(kinds.size(), NeedleKinds().size());
  EXPECT_EQ(different, static_cast<int>(trials->size()));
}

TEST(Needle, IndirectQuestionsShareNoWordWithTheirFact) {
  const auto words = [](const char* text) {
    std::set<std::string> found;
    std::string word;
    for (const char* c = text;; ++c) {
      if (std::isalpha(static_cast<unsigned char>(*c)) != 0) {
        word += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
        continue;
      }
      // The words that hold any sentence together are no hint.
      static const std::set<std::string> kGlue = {"",   "a",   "an", "and", "in",   "is",
                                                  "of", "the", "to", "who", "with", "has"};
      if (kGlue.count(word) == 0) found.insert(word);
      word.clear();
      if (*c == '\0') return found;
    }
  };
  for (const IndirectFact& fact : IndirectFacts()) {
    EXPECT_EQ(std::string(fact.fact).rfind("NAME ", 0), 0u);
    for (const std::string& word : words(fact.question)) {
      EXPECT_EQ(words(fact.fact).count(word), 0u) << word << ": " << fact.fact;
    }
  }
}

TEST(Needle, RefusesWhatCannotBeBuilt) {
  const Result<Haystack> hay = Hay();
  ASSERT_TRUE(hay.ok());
  const auto message = [&](const NeedleOptions& options) {
    const auto trials = MakeNeedleTrials(*hay, options);
    EXPECT_EQ(trials.status().code(), StatusCode::kInvalidArgument);
    return trials.status().message();
  };
  NeedleOptions options;
  options.lengths = {100000};
  EXPECT_NE(message(options).find("tokens of text and"), std::string::npos);
  options.lengths = {300};
  EXPECT_NE(message(options).find("too short"), std::string::npos);
  options.lengths = {2000};
  options.depths = {1.5};
  EXPECT_NE(message(options).find("1.5 is outside 0..1"), std::string::npos);
  FakeResponder fake("f16", true, Remembering(1));
  NeedleOptions unknown = Options();
  unknown.kinds = {"haystack"};
  EXPECT_NE(RunNeedle(fake, {}, unknown)
                .status()
                .message()
                .find("no kind 'haystack'; there are single, multi_key"),
            std::string::npos);
  EXPECT_EQ(Haystack::Create("t", " \n", [](std::string_view) { return 1; }).status().code(),
            StatusCode::kInvalidArgument);
}

// The number behind "use FLAG " of a message; 0: it names none, or another flag.
int64_t EnoughBy(const Status& status, const std::string& flag) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  const std::string before = "; use " + flag + " ";
  const size_t at = status.message().find(before);
  return at == std::string::npos ? 0 : std::stoll(status.message().substr(at + before.size()));
}

TEST(Needle, WhoAskedForTooLittleIsToldTheFlagAndWhatIsEnough) {
  const Result<Haystack> hay = Hay();
  ASSERT_TRUE(hay.ok());
  for (const char* kind : {"multi_key", "variables", "common_words"}) {
    NeedleOptions options;
    options.kinds = {kind};
    options.lengths = {200};
    const Status status = MakeNeedleTrials(*hay, options).status();
    const int64_t enough = EnoughBy(status, "--lengths");
    ASSERT_GT(enough, 200) << status.message();
    options.lengths = {enough};
    EXPECT_TRUE(MakeNeedleTrials(*hay, options).ok()) << kind << " " << enough;
    options.lengths = {enough * 8 / 10};  // and not much more than is needed
    EXPECT_FALSE(MakeNeedleTrials(*hay, options).ok()) << kind << " " << enough;
  }
}

TEST(Adversarial, WhoAskedForTooLittleIsToldTheFlagAndWhatIsEnough) {
  const Result<Haystack> hay = Hay();
  ASSERT_TRUE(hay.ok());
  AdversarialOptions options;
  options.kinds = {"contradictions"};
  options.length = 200;
  const Status status = MakeAdversarialTrials(*hay, options).status();
  options.length = EnoughBy(status, "--length");
  ASSERT_GT(options.length, 200) << status.message();
  EXPECT_TRUE(MakeAdversarialTrials(*hay, options).ok());
  PromptOptions prompts;
  prompts.long_tokens = 200;
  EXPECT_GT(EnoughBy(MakePrompts(*hay, prompts).status(), "--prompt-tokens"), 200);
}

TEST(Needle, AnEndpointsTokensAreEstimatedFromWhatItCounts) {
  FakeResponder endpoint("http://x", false, [](const ordered_json&) -> Result<ordered_json> {
    return ordered_json{{"message", {{"content", "x"}}}};
  });
  const auto counter = CounterFor(endpoint, true, LongText(), nullptr);
  ASSERT_TRUE(counter.ok());
  EXPECT_EQ((*counter)(std::string(400, 'a')), 100);  // 4 bytes a token where it says nothing
}

TEST(Adversarial, APerfectMemoryIsRightAndKindsAreDeterministic) {
  FakeResponder whole("f16", true, Remembering(1)), again("same", true, Remembering(1));
  Responder* const candidates[] = {&again};
  AdversarialOptions options;
  options.text_name = "text.txt";
  options.text = LongText();
  options.length = 12000;  // bytes
  options.questions = 6;
  const auto result = RunAdversarial(whole, candidates, options);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  // The others need more than memory of what was said once. The easy level, the default, has four
  // look-alikes.
  for (const char* kind : {"near_duplicates", "distractors", "copy_code", "copy_json"}) {
    const GroupTally group = TallyOfKind(result->trials, kind);
    const int asked = std::string(kind) == "near_duplicates" ? 4 : 6;
    EXPECT_EQ(group.baseline.trials, asked) << kind;
    EXPECT_EQ(group.baseline.right, asked) << kind;
    EXPECT_EQ(group.candidates[0].gained + group.candidates[0].lost, 0) << kind;
  }
  for (const Trial& t : result->trials.trials) {
    EXPECT_LE(t.text->size() + t.primer.size(), 12000u) << t.kind;
    if (t.kind == "patterns") {
      // The text and what is expected repeat with one period.
      const std::string all = *t.text + t.expected.front();
      const std::string end = all.substr(all.size() - 60);
      EXPECT_LT(all.find(end), all.size() / 2);
    }
    if (t.kind == "contradictions" && !t.wrong.empty()) {
      EXPECT_GT(t.text->find("is " + t.expected.front()), t.text->find("is " + t.wrong.front()));
    }
  }
  EXPECT_EQ(AdversarialJson(*result)["by_kind"].size(), AdversarialKinds().size());
  EXPECT_NE(AdversarialSection(*result).find("near_duplicates"), std::string::npos);
}

TEST(Adversarial, AHardTextHoldsManyMoreLookAlikes) {
  const Result<Haystack> hay = Hay();
  ASSERT_TRUE(hay.ok());
  AdversarialOptions options;
  options.length = 4000;
  const auto lines = [&](const std::string& kind, const std::string& word) {
    options.kinds = {kind};
    const auto trials = MakeAdversarialTrials(*hay, options);
    EXPECT_TRUE(trials.ok()) << trials.status().ToString();
    size_t count = 0, at = 0;
    const std::string& text = *trials->front().text;
    for (; (at = text.find(word, at)) != std::string::npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(lines("near_duplicates", "The password of the"), 4u);
  EXPECT_EQ(lines("distractors", "The password of"), 6u);
  options.level = AdversarialLevel::kHard;
  EXPECT_GT(lines("near_duplicates", "The password of the"), 40u);
  EXPECT_GT(lines("distractors", "The password of"), 200u);
  // Then there is nothing beside the facts.
  EXPECT_EQ(lines("distractors", "Line "), 0u);
  EXPECT_EQ(DefaultLevel(AskForm::kChat), AdversarialLevel::kHard);
}

// White space belongs to the token that follows: a primer that ended in it would split that.
TEST(Adversarial, NoPrimerEndsInABlank) {
  const Result<Haystack> hay = Hay();
  ASSERT_TRUE(hay.ok());
  AdversarialOptions options;
  options.length = 4000;
  const auto trials = MakeAdversarialTrials(*hay, options);
  ASSERT_TRUE(trials.ok());
  for (const Trial& t : *trials) {
    const std::string prompt = *t.text + t.primer;
    EXPECT_EQ(std::isspace(static_cast<unsigned char>(prompt.back())), 0) << t.kind;
    if (t.rule == ScoreRule::kCopy && !t.primer.empty()) {
      EXPECT_NE(t.text->find(t.primer + t.expected.front()), std::string::npos) << t.kind;
    }
  }
}

TEST(ScoreAnswer, ComparesWholeWordsAndBytes) {
  Trial t;
  t.expected = {"583"};
  t.wrong = {"912"};
  const auto score = [&](AskForm form, const std::string& answer) {
    return ScoreAnswer(t, form, answer);
  };
  EXPECT_EQ(score(AskForm::kPrimed, " 583. And"), 1);
  EXPECT_EQ(score(AskForm::kPrimed, " 5830"), 0);
  EXPECT_EQ(score(AskForm::kPrimed, " not 583"), 0);
  EXPECT_EQ(score(AskForm::kPrimed, ""), 0);
  EXPECT_EQ(score(AskForm::kChat, "The number is **583**."), 1);
  EXPECT_EQ(score(AskForm::kChat, "Either 583 or 912."), 0);
  EXPECT_EQ(score(AskForm::kChat, "1583"), 0);
  t.rule = ScoreRule::kAll;
  t.expected = {"anchor", "bell", "lamp", "moon"};
  EXPECT_EQ(score(AskForm::kPrimed, " Anchor\n2. bell\n3. lampshade"), 0.5);
  t.rule = ScoreRule::kCopy;
  t.expected = {"abcdefgh"};
  EXPECT_EQ(score(AskForm::kPrimed, "abcdefgh\nmore"), 1);
  EXPECT_EQ(score(AskForm::kPrimed, "abcdXfgh"), 0.5);
  EXPECT_EQ(score(AskForm::kPrimed, " abcdefgh"), 0);
  EXPECT_EQ(score(AskForm::kChat, "Here:\n```\nabcdefgh\n```"), 1);
}

TEST(RunTrials, ErrorsNameTheResponderAndCancelStops) {
  Trial t;
  t.kind = "single";
  t.text = std::make_shared<const std::string>("text");
  t.expected = {"1"};
  FakeResponder good("f16", true, Remembering(1));
  FakeResponder bad("http://x", false, [](const ordered_json&) -> Result<ordered_json> {
    return Unavailable("no route");
  });
  Responder* const candidates[] = {&bad};
  const Status failed = RunTrials(good, candidates, {t}, {}).status();
  EXPECT_EQ(failed.code(), StatusCode::kUnavailable);
  EXPECT_EQ(failed.message(), "http://x: no route");
  TrialOptions options;
  options.progress = [](size_t, size_t, const std::string&) { return false; };
  EXPECT_EQ(RunTrials(good, {}, {t, t}, options).status().code(), StatusCode::kCancelled);
}

TEST(TrialReport, EscapesAnswers) {
  Trial t;
  t.kind = "single";
  t.depth = 0.5;
  t.length = 100;
  t.text = std::make_shared<const std::string>("text\n");
  t.primer = "The <b> is";
  t.expected = {"1"};
  FakeResponder good("f16", true, [](const ordered_json&) -> Result<ordered_json> {
    return ordered_json{{"text", " 1"}};
  });
  FakeResponder bad("<i>", true, [](const ordered_json&) -> Result<ordered_json> {
    return ordered_json{{"text", "<script>alert(1)</script>\x01"}};
  });
  Responder* const candidates[] = {&bad};
  const auto result = RunTrials(good, candidates, {t}, {});
  ASSERT_TRUE(result.ok());
  const std::string html =
      TrialsHtml(*result, NeedleKinds()) + HeatMapHtml(*result, "single", {100}, {0.5});
  EXPECT_EQ(html.find("<script>"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos);
  EXPECT_EQ(html.find("<i>"), std::string::npos);
  EXPECT_NE(html.find("1/1"), std::string::npos);
  EXPECT_NE(html.find("0/1"), std::string::npos);
}

}  // namespace
}  // namespace tq
