// What is concluded from answers, with responders that answer as they are told.
#include "runtime/evaluate/tasks/generations.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <set>

#include "runtime/model/tiny_bert_for_test.h"
#include "turboquant/base/file.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

class Scripted : public Responder {
 public:
  using Say = std::function<Result<std::string>(const std::string& prompt, uint64_t seed)>;
  Scripted(std::string name, Say say) : name_(std::move(name)), say_(std::move(say)) {}
  Result<ordered_json> Respond(const ordered_json& request, const std::atomic<bool>*) override {
    ++asked;
    ordered_json choices = ordered_json::array();
    for (uint64_t i = 0; i < request.value("n", uint64_t{1}); ++i) {
      TQ_ASSIGN_OR_RETURN(const std::string text, say_(request["prompt"].get<std::string>(),
                                                       request["seed"].get<uint64_t>() + i));
      choices.push_back({{"index", i}, {"text", text}, {"finish_reason", "stop"}});
    }
    return ordered_json{{"choices", std::move(choices)}};
  }
  bool answers_together() const override { return together; }
  const std::string& name() const override { return name_; }
  bool deterministic() const override { return true; }
  const Tokenizer* tokenizer() const override { return nullptr; }
  int asked = 0;
  bool together = false;

 private:
  std::string name_;
  Say say_;
};

// Embeddings of random weights: texts of other words have other vectors, which is enough here.
const TextEmbedder& Embedder() {
  static ThreadPool pool(1);
  static const std::unique_ptr<TextEmbedder> kEmbedder = [] {
    // Tests run side by side, each in a process of its own.
    const std::string folder = testing::TempDir() + StrCat("tq_tiny_bert_", ::getpid());
    std::filesystem::create_directories(folder);
    std::string vocabulary = "[UNK]\n[CLS]\n[SEP]\n";
    for (char c = 'a'; c <= 'z'; ++c) vocabulary += std::string(1, c) + "\n##" + c + "\n";
    for (char c = '0'; c <= '9'; ++c) vocabulary += std::string(1, c) + "\n##" + c + "\n";
    TinyBert tiny(3 + 2 * 36, 256);
    TQ_CHECK(WriteFileAtomic(folder + "/vocab.txt", vocabulary).ok());
    TQ_CHECK(WriteFileAtomic(folder + "/config.json", tiny.config.dump()).ok());
    TQ_CHECK(WriteSafetensors(folder + "/model.safetensors", tiny.tensors).ok());
    auto loaded = TextEmbedder::Load(folder, pool);
    TQ_CHECK(loaded.ok());
    std::filesystem::remove_all(folder);
    return *std::move(loaded);
  }();
  return *kEmbedder;
}

GenerationsOptions Options(int prompts) {
  GenerationsOptions options;
  for (int i = 0; i < prompts; ++i) {
    const std::string text = StrCat("the code of house ", i, " is");
    options.prompts.push_back({.name = StrCat("p", i),
                               .group = i % 2 == 0 ? PromptGroup::kShort : PromptGroup::kLong,
                               .request = {{"prompt", text}, {"max_tokens", 8}},
                               .question = text,
                               .expected = std::to_string(100 + i)});
  }
  options.embeddings_name = "tiny";
  return options;
}

// The right code, in words that the seed chooses.
std::string Honest(const std::string& prompt, uint64_t seed) {
  static constexpr const char* kWords[] = {"well it is ", "surely ", "the answer is "};
  const int house = std::stoi(prompt.substr(prompt.find_last_of("0123456789")));
  return kWords[seed % 3] + std::to_string(100 + house) + ", as " +
         std::string(1, static_cast<char>('a' + house)) + " said";
}

Result<GenerationsResult> Measure(const Scripted::Say& candidate,
                                  const GenerationsOptions& options) {
  Scripted a("plain", Honest), b("other", candidate);
  return RunGenerations(a, b, Embedder(), options);
}

TEST(Generations, TheSameModelHasNoDifference) {
  const auto result = Measure(Honest, Options(6));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->all.similarity.difference, 0);
  EXPECT_EQ(result->all.similarity.interval->low, 0);
  EXPECT_EQ(result->all.similarity.interval->high, 0);
  EXPECT_EQ(result->all.facts.difference, 0);
  EXPECT_EQ(result->all.same_answers, 1);
  EXPECT_EQ(result->all.right.candidate, 1);
  EXPECT_EQ(result->all.prompts, 6);
  EXPECT_EQ(result->groups[0].prompts, 3);
  EXPECT_EQ(result->groups[2].prompts, 0);
  // Seeds differ: the floor is not 1.
  EXPECT_LT(result->all.similarity.floor, 1);
}

TEST(Generations, AnswersThatComeTogetherAreThoseOfTheSameSeeds) {
  Scripted a("plain", Honest), b("other", Honest);
  a.together = true;
  const auto result = RunGenerations(a, b, Embedder(), Options(4));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(a.asked, 4);
  EXPECT_EQ(b.asked, 12);
  for (const GenerationsCase& one : result->cases) {
    EXPECT_EQ(one.baseline, one.candidate);
    EXPECT_EQ(one.baseline.size(), 3u);
  }
}

TEST(Generations, AWrongDigitIsSeenInTheFacts) {
  const auto result = Measure(
      [](const std::string& prompt, uint64_t seed) {
        std::string text = Honest(prompt, seed);
        text[text.find("10")] = '9';
        return text;
      },
      Options(6));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->all.facts.floor, 1);
  EXPECT_EQ(result->all.facts.candidate, 0);
  EXPECT_LT(result->all.facts.interval->high, 0);
  EXPECT_EQ(result->all.right.baseline, 1);
  EXPECT_EQ(result->all.right.candidate, 0);
  EXPECT_EQ(result->cases[2].lost, std::vector<std::string>{"102"});
  EXPECT_EQ(result->cases[2].added, std::vector<std::string>{"902"});
}

TEST(Generations, RightAnswersSayNothingWhereThePlainModelHasNone) {
  GenerationsOptions options = Options(2);
  for (Prompt& prompt : options.prompts) prompt.expected = "never said";
  const auto result = Measure(Honest, options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->all.right.prompts, 2);
  EXPECT_TRUE(GenerationsJson(*result)["right"].is_null());
}

TEST(Generations, OtherMeaningAndLoopsLowerSimilarityAndRaiseRepetition) {
  // Says the same whatever the seed: nothing else can be as similar, whatever the embeddings are.
  Scripted plain("plain", [](const std::string& prompt, uint64_t) { return Honest(prompt, 0); });
  Scripted loops("loops", [](const std::string&, uint64_t) {
    std::string text;
    for (int i = 0; i < 20; ++i) text += "zzz qqq xxx vvv ";
    return text;
  });
  const auto result = RunGenerations(plain, loops, Embedder(), Options(6));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_LT(result->all.similarity.difference, 0);
  EXPECT_GT(result->all.repetition.interval->low, 0.5);
  EXPECT_EQ(result->all.repetition.baseline, 0);
  EXPECT_EQ(result->all.words.candidate, 80);
}

TEST(Generations, LongAnswersHaveDriftAndQuarters) {
  GenerationsOptions options = Options(2);
  for (Prompt& prompt : options.prompts) prompt.group = PromptGroup::kLongAnswer;
  const auto tell = [](const std::string& end) {
    return [end](const std::string&, uint64_t seed) {
      std::string text;
      for (int i = 0; i < 60; ++i)
        text += i % 3 == static_cast<int>(seed % 3) ? "a sea " : "the sea ";
      for (int i = 0; i < 60; ++i) text += end;
      return text;
    };
  };
  Scripted a("plain", tell("the sea ")), b("other", tell("xyz 777 "));
  const auto result = RunGenerations(a, b, Embedder(), options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  const GenerationsGroup& g = result->groups[static_cast<size_t>(PromptGroup::kLongAnswer)];
  EXPECT_EQ(g.drift.prompts, 2);
  EXPECT_GT(g.drift.difference, 0);
  EXPECT_LT(g.by_quarter[3].difference, g.by_quarter[0].difference);
}

TEST(Generations, ARefusedPromptIsLeftOutAndSaid) {
  const auto refuses = [](const std::string& prompt, uint64_t seed) -> Result<std::string> {
    if (prompt.find("house 3") != std::string::npos) return InvalidArgument("too long");
    return Honest(prompt, seed);
  };
  auto result = Measure(refuses, Options(6));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->failed, 1);
  EXPECT_EQ(result->all.prompts, 5);
  EXPECT_EQ(result->cases[3].error, "too long");
  EXPECT_EQ(GenerationsJson(*result)["cases"][3]["error"], "too long");
  EXPECT_EQ(result->groups[0].similarity.prompts, 3);

  result = Measure(
      [](const std::string&, uint64_t) -> Result<std::string> { return InvalidArgument("never"); },
      Options(2));
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find("never"), std::string::npos);

  result = Measure(
      [](const std::string&, uint64_t) -> Result<std::string> { return Unavailable("no route"); },
      Options(2));
  EXPECT_EQ(result.status().code(), StatusCode::kUnavailable);
}

TEST(Generations, AnswersThatHaveNothingInCommonAreNotInformative) {
  const auto babble = [](const std::string& prompt, uint64_t seed) {
    uint64_t state = seed + prompt.size();
    std::string text;
    for (int i = 0; i < 12; ++i) {
      text += static_cast<char>('a' + SplitMix64(state) % 26);
      if (i % 3 == 2) text += ' ';
    }
    return text;
  };
  Scripted a("plain", babble), b("other", babble);
  const auto result = RunGenerations(a, b, Embedder(), Options(8));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_FALSE(result->informative);
  EXPECT_NE(result->note.find("hardly nearer"), std::string::npos);
  EXPECT_EQ(GenerationsJson(*result)["informative"], false);
}

TEST(Generations, AGateFailsWhereNothingCanBeTold) {
  auto result = Measure(Honest, Options(6));
  ASSERT_TRUE(result.ok()) << result.status().message();
  result->informative = true;  // whatever random embeddings say
  EXPECT_EQ(FailureOf(*result, 0.1), "");
  result->informative = false;
  EXPECT_EQ(FailureOf(*result, {}), "");
  EXPECT_NE(FailureOf(*result, 0.1), "");
  result = Measure(Honest, Options(1));
  result->informative = true;
  EXPECT_EQ(FailureOf(*result, {}), "");
  EXPECT_NE(FailureOf(*result, 0.1).find("a single prompt"), std::string::npos);
}

TEST(Generations, ACandidateIsNotJudgedByTheFewPromptsThatItAnswers) {
  const auto result = Measure(
      [](const std::string& prompt, uint64_t seed) -> Result<std::string> {
        if (prompt.find("house 3") != std::string::npos) return InvalidArgument("too long");
        return Honest(prompt, seed);
      },
      Options(5));
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(GenerationsJson(*result)["answered_share"], 0.8);
  EXPECT_NE(FailureOf(*result, {}).find("answered 80 %"), std::string::npos);
}

TEST(Generations, AnswersAreRedactedBeforeAnythingElse) {
  GenerationsOptions options = Options(3);
  options.redact = [](const std::string& text) {
    std::string out = text;
    for (char& c : out) {
      if (c >= '0' && c <= '9') c = '#';
    }
    return out;
  };
  const auto result = Measure(Honest, options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->all.facts.prompts, 0);
  const std::string json = GenerationsJson(*result)["cases"].dump();
  EXPECT_EQ(json.find("101,"), std::string::npos);
  EXPECT_NE(json.find("###,"), std::string::npos);
  EXPECT_TRUE(GenerationsJson(*result)["facts"].is_null());
}

TEST(Generations, TheSectionShowsBothAnswersEscaped) {
  const auto result =
      Measure([](const std::string&, uint64_t) { return std::string("<script>alert(1)</script>"); },
              Options(2));
  ASSERT_TRUE(result.ok()) << result.status().message();
  const std::string section = GenerationsSection(*result);
  EXPECT_EQ(section.find("<script>alert"), std::string::npos);
  EXPECT_NE(section.find("&lt;script&gt;alert"), std::string::npos);
  EXPECT_NE(section.find("house 1 is"), std::string::npos);
  EXPECT_NE(section.find("100, as a said"), std::string::npos);
}

TEST(Generations, OnePromptHasNoInterval) {
  const auto result = Measure(Honest, Options(1));
  ASSERT_TRUE(result.ok()) << result.status().message();
  const ordered_json j = GenerationsJson(*result);
  EXPECT_EQ(j["similarity"]["difference"], 0);
  EXPECT_TRUE(j["similarity"]["high"].is_null());
  EXPECT_TRUE(j["groups"]["short"]["facts"]["low"].is_null());
}

TEST(Generations, BadOptionsAreRefused) {
  GenerationsOptions options = Options(1);
  options.generations = 1;
  EXPECT_EQ(Measure(Honest, options).status().code(), StatusCode::kInvalidArgument);
  options = Options(1);
  options.temperature = 3;
  EXPECT_EQ(Measure(Honest, options).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Measure(Honest, Options(0)).status().code(), StatusCode::kInvalidArgument);
}

TEST(Generations, ProgressCountsAllAnswersAndCancels) {
  GenerationsOptions options = Options(2);
  std::vector<size_t> seen;
  options.progress = [&](size_t done, size_t total, const std::string&) {
    EXPECT_EQ(total, 12u);
    seen.push_back(done);
    return done < 9;
  };
  EXPECT_EQ(Measure(Honest, options).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(seen, (std::vector<size_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

}  // namespace
}  // namespace tq
