// What reports of needles and of adversarial texts share.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "runtime/evaluate/tasks/trial.h"

namespace tq {

// {"baseline": NAME, "questions", "informative", "note", and for each candidate "candidate",
// "rate", "difference", "difference_interval" (all over informative kinds), "by_kind", "missed"}:
// at the top for one candidate, under "rows" for several.
nlohmann::ordered_json TrialsJson(const TrialsResult& result);
// Of one group of trials and one candidate.
nlohmann::ordered_json GroupJson(const GroupTally& group, size_t candidate);

// Which kinds the baseline cannot do; empty when it can do all.
std::string TrialsNote(const TrialsResult& result);

// A sentence for each candidate: how many of the questions that count it gets right beside the
// baseline, and whether the difference may be chance.
std::string TrialsVerdict(const TrialsResult& result);

// Kinds by responders, with intervals; then the answers that differ in being right.
std::string TrialsHtml(const TrialsResult& result, std::span<const TrialKind> kinds);
// Shares by depth and length, one map for each responder, of a kind whose trials have depths.
std::string HeatMapHtml(const TrialsResult& result, const std::string& kind,
                        const std::vector<int64_t>& lengths, const std::vector<double>& depths);

std::string Percent(double share);             // "95 %"
std::string PercentRange(const Interval& in);  // "75 to 100 %"
std::string SignedPoints(double difference);   // "-2.5" percentage points; "0.0"
// A name for columns: itself where it is short, `role` ("baseline") otherwise.
std::string ColumnName(const std::string& name, const std::string& role);
// One line of at most `most` bytes, cut at a character.
std::string Excerpt(const std::string& text, size_t most);

}  // namespace tq
