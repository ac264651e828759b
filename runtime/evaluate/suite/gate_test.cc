// Gates: what they ask, what a run makes of them, and the files and pages that tell.
#include "runtime/evaluate/suite/gate.h"

#include <gtest/gtest.h>

#include "runtime/engine/session.h"
#include "runtime/evaluate/fakes_for_test.h"
#include "runtime/evaluate/kld_run.h"
#include "runtime/evaluate/suite/suite.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

const std::vector<std::string> kKnown = {"kld", "generate", "needle"};

Gate Parsed(const std::string& text) {
  const Result<Gate> gate = ParseGate(text, "gate.json", kKnown);
  EXPECT_TRUE(gate.ok()) << gate.status().message();
  return gate.ok() ? *gate : Gate{};
}

std::string Refusal(const std::string& text) {
  const Result<Gate> gate = ParseGate(text, "gate.json", kKnown);
  EXPECT_FALSE(gate.ok()) << text;
  return gate.status().message();
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

EvaluationOutcome Kld(double mean) {
  return {"kld",
          {{"kld", {{"mean", mean}, {"p99", 0.05}}},
           {"informative", true},
           {"facts", nullptr},
           {"rows", {{{"x", 1}}, {{"x", 2}}}}},
          ""};
}

SuiteStep Step(const EvaluationOutcome& outcome) {
  return {outcome.name, [outcome]() -> Result<EvaluationReport> {
            return EvaluationReport{outcome.document, "<h2>" + outcome.name + "</h2>\n"};
          }};
}

TEST(Gate, BoundsAreInclusiveOnBothSides) {
  const Gate gate = Parsed(R"({"kld": {"kld.mean": {"max": 0.005, "min": 0.001}}})");
  for (const auto& [value, state] : {std::pair{0.005, CheckState::kPassed},
                                     {0.001, CheckState::kPassed},
                                     {0.0051, CheckState::kFailed},
                                     {0.0009, CheckState::kFailed}}) {
    const auto checks = CheckGate(gate, {Kld(value)});
    ASSERT_TRUE(checks.ok());
    EXPECT_EQ(checks->front().state, state) << value;
    EXPECT_EQ(checks->front().value, value);
  }
  const auto checks = CheckGate(gate, {Kld(0.0092)});
  EXPECT_EQ(checks->front().text, "kld.mean is 0.0092; 0.001 to 0.005 is allowed");
}

TEST(Gate, ListsAreReadByIndex) {
  const auto checks = CheckGate(Parsed(R"({"kld": {"rows.1.x": {"min": 2}}})"), {Kld(0)});
  ASSERT_TRUE(checks.ok()) << checks.status().message();
  EXPECT_EQ(checks->front().state, CheckState::kPassed);
  EXPECT_FALSE(CheckGate(Parsed(R"({"kld": {"rows.2.x": {"min": 2}}})"), {Kld(0)}).ok());
  EXPECT_FALSE(CheckGate(Parsed(R"({"kld": {"rows.x": {"min": 2}}})"), {Kld(0)}).ok());
}

TEST(Gate, AKeyThatNoResultHasIsAnErrorThatListsWhatThereIs) {
  const auto checks = CheckGate(Parsed(R"({"kld": {"kld.average": {"max": 1}}})"), {Kld(0)});
  EXPECT_EQ(checks.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(checks.status().message(), "'kld.average' of kld"));
  EXPECT_TRUE(Has(checks.status().message(), "kld.mean, kld.p99, rows.0.x, rows.1.x"));
}

TEST(Gate, WhatSaysNothingNeitherPassesNorFails) {
  const Gate gate = Parsed(R"({"kld": {"kld.mean": {"max": 0.005}, "facts.high": {"min": 0}},
                              "needle": {"difference": {"min": 0}}})");
  EvaluationOutcome outcome = Kld(9);
  outcome.document["informative"] = false;
  outcome.document["note"] = "the plain model is wrong too";
  const auto checks = CheckGate(gate, {outcome, {"needle", nullptr, "no text"}});
  ASSERT_TRUE(checks.ok()) << checks.status().message();
  for (const GateCheck& check : *checks) EXPECT_EQ(check.state, CheckState::kSkipped);
  EXPECT_EQ((*checks)[0].text, "not informative: the plain model is wrong too");
  EXPECT_EQ((*checks)[1].text, "facts.high could not be measured");
  EXPECT_EQ((*checks)[2].text, "not run: no text");
  EXPECT_STREQ(CountChecks(*checks).verdict(), "nothing was checked");
}

TEST(Gate, AValueThatIsNoNumberFails) {
  const auto checks = CheckGate(Parsed(R"({"kld": {"kld.mean": {"max": 1}}})"), {Kld(NAN)});
  ASSERT_TRUE(checks.ok());
  EXPECT_EQ(checks->front().state, CheckState::kFailed);
}

TEST(Gate, FilesThatAreWrongAreRefusedWithTheKey) {
  EXPECT_TRUE(Has(Refusal("[]"), "not a JSON object"));
  EXPECT_TRUE(Has(Refusal("{"), "not a JSON object"));
  EXPECT_TRUE(Has(Refusal("{}"), "no bounds"));
  EXPECT_TRUE(Has(Refusal(R"({"kdl": {"a": {"max": 1}}})"), "'kdl'; there are: kld, generate"));
  EXPECT_TRUE(Has(Refusal(R"({"kld": 3})"), "'kld' of 'gate.json' is number"));
  EXPECT_TRUE(Has(Refusal(R"({"kld": {"a": 1}})"), "'kld' > 'a' is 1"));
  EXPECT_TRUE(Has(Refusal(R"({"kld": {"a": {}}})"), "both were expected"));
  EXPECT_TRUE(Has(Refusal(R"({"kld": {"a": {"maximum": 1}}})"), "'maximum'"));
  EXPECT_TRUE(Has(Refusal(R"({"kld": {"a": {"max": "1"}}})"), "a number was expected"));
  EXPECT_TRUE(Has(Refusal(R"({"kld": {"a": {"note": "x"}}})"), "neither min nor max"));
  EXPECT_TRUE(Has(Refusal(R"({"kld": {"a": {"min": 2, "max": 1}}})"), "min 2"));
}

TEST(Gate, TheOneThatShipsCanBeRead) {
  const Result<Gate> gate = ParseGate(std::string(DefaultGateText()), "default",
                                      {"kld", "needle", "adversarial", "generate", "replay"});
  ASSERT_TRUE(gate.ok()) << gate.status().message();
  EXPECT_GE(gate->bounds.size(), 5u);
  for (const GateBound& bound : gate->bounds) EXPECT_FALSE(bound.why.empty()) << bound.path;
}

TEST(JUnit, HasASuiteForEachEvaluationAndACaseForEachBound) {
  const Gate gate = Parsed(R"({"kld": {"kld.mean": {"max": 0.005}, "kld.p99": {"max": 1}},
                              "needle": {"a<b": {"min": 0}}})");
  const auto checks = CheckGate(gate, {Kld(0.01), {"needle", nullptr, "a & \"b\""}});
  ASSERT_TRUE(checks.ok());
  EXPECT_EQ(JUnitXml("k4v4 & more", *checks, {{"kld", 2.5}}),
            R"(<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="k4v4 &amp; more" tests="3" failures="1" errors="0" skipped="1" time="2.500">
  <testsuite name="kld" tests="2" failures="1" errors="0" skipped="0" time="2.500">
    <testcase classname="tq.kld" name="kld.mean" time="1.250">
      <failure message="kld.mean is 0.01; at most 0.005 is allowed"/>
    </testcase>
    <testcase classname="tq.kld" name="kld.p99" time="1.250"/>
  </testsuite>
  <testsuite name="needle" tests="1" failures="0" errors="0" skipped="1" time="0.000">
    <testcase classname="tq.needle" name="a&lt;b" time="0.000">
      <skipped message="not run: a &amp; &quot;b&quot;"/>
    </testcase>
  </testsuite>
</testsuites>
)");
}

TEST(Suite, EveryEvaluationIsJudgedAndShown) {
  const Gate gate = Parsed(R"({"kld": {"kld.mean": {"max": 0.005, "note": "<why>"}},
                              "needle": {"difference": {"min": 0}}})");
  const auto result =
      RunSuite("M, k4v4", gate, {Step(Kld(0.01)), {"needle", {}, "no text was given"}});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_FALSE(result->passed());
  const ordered_json j = SuiteJson(*result);
  EXPECT_EQ(j["verdict"], "failed");
  EXPECT_EQ(j["kld"]["kld"]["mean"], 0.01);
  EXPECT_EQ(j["left_out"]["needle"], "no text was given");
  EXPECT_EQ(j["checks"][0]["state"], "failed");
  const std::string page = SuiteSection(*result);
  EXPECT_TRUE(Has(page, "1 of 1 checks failed; 1 skipped."));
  EXPECT_TRUE(Has(page, "<h2>kld</h2>"));
  EXPECT_TRUE(Has(page, "&lt;why&gt;"));
  EXPECT_TRUE(Has(page, "needle was left out: no text was given."));
  EXPECT_TRUE(Has(SuiteText(*result), "failed  kld: kld.mean is 0.01"));
}

TEST(Suite, AWrongKeyEndsItBeforeTheNextEvaluation) {
  const Gate gate = Parsed(R"({"kld": {"kld.wrong": {"max": 1}}, "needle": {"x": {"min": 0}}})");
  bool went_on = false;
  const SuiteStep next = {"needle", [&]() -> Result<EvaluationReport> {
                            went_on = true;
                            return EvaluationReport{{{"x", 1}}, ""};
                          }};
  const auto result = RunSuite("M", gate, {Step(Kld(0)), next});
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(went_on);
}

TEST(Suite, AnEvaluationThatEndsInAnErrorIsNamed) {
  const SuiteStep broken = {"needle",
                            []() -> Result<EvaluationReport> { return Unavailable("no route"); }};
  const auto result = RunSuite("M", Parsed(R"({"needle": {"x": {"min": 0}}})"), {broken});
  EXPECT_EQ(result.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(result.status().message(), "needle: no route");
}

// The keys of one head of four, with levels of their own and no correction of the gain: `scale` 1
// is as good as the rest, anything else is wrong without breaking any rule.
Result<SuiteResult> RunWithLevels(double scale, double max_kld) {
  ThreadPool pool(1);
  TinyModel model(pool);
  CacheConfig config = model.Config("k4v4");
  config.recent_len = 64;
  config.sink_len = 0;
  config.formats[1].k.codebook = Codebook::kCalibrated;
  config.formats[1].k.gain = Gain::kNone;
  config.tensors.resize(config.formats.size());
  for (const double level : {0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0691, 2.7327}) {
    std::vector<float>& levels = config.tensors[1].k_levels;
    levels.insert(levels.begin(), static_cast<float>(-scale * level));
    levels.push_back(static_cast<float>(scale * level));
  }
  KldOptions options;
  options.reference = {"f16", &model, model.Config("f16")};
  options.floor = {"k8v8", &model, model.Config("k8v8")};
  options.candidates = {{"planted", &model, config}};
  // What the plain model says itself: random text would tell it nothing.
  auto session = Session::Create(model, model.Config("f16"), 512);
  if (!session.ok()) return session.status();
  const std::vector<TokenId> first = {'a'};
  TQ_RETURN_IF_ERROR((*session)->Prefill(first));
  GenerateOptions generate{.max_tokens = 511, .ignore_stop_tokens = true};
  generate.sampling.temperature = 0.7f;
  TQ_RETURN_IF_ERROR((*session)->Generate(ByteTokenizer(), generate).status());
  const std::span<const TokenId> said = (*session)->tokens();
  const std::vector<TokenId> window(said.begin(), said.end());
  options.texts = {{"random", {window}}};
  const SuiteStep step = {"kld", [&]() -> Result<EvaluationReport> {
                            TQ_ASSIGN_OR_RETURN(const KldResult kld, RunKld(options));
                            return EvaluationReport{KldJson(kld), KldSection(kld)};
                          }};
  const nlohmann::json gate = {{"kld", {{"kld.mean", {{"max", max_kld}}}}}};
  return RunSuite("tiny", Parsed(gate.dump()), {step});
}

TEST(Suite, AWrongScaleInOneHeadFailsTheGateAndARightOnePasses) {
  const auto trusted = RunWithLevels(1, 1);
  ASSERT_TRUE(trusted.ok()) << trusted.status().message();
  ASSERT_EQ(trusted->count.passed, 1) << trusted->checks[0].text;
  const double bound = 2 * *trusted->checks[0].value;
  const auto good = RunWithLevels(1, bound), bad = RunWithLevels(0.3, bound);
  ASSERT_TRUE(good.ok() && bad.ok());
  EXPECT_EQ(good->count.passed, 1) << good->checks[0].text;
  EXPECT_EQ(bad->count.failed, 1) << bad->checks[0].text;
}

}  // namespace
}  // namespace tq
