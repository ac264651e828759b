// What was read and used, as JSON and as lines for a person.
#include <fmt/format.h>

#include "runtime/evaluate/corpus.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

using Json = nlohmann::ordered_json;

Json SkippedJson(const std::vector<CorpusReport::Skipped>& skipped) {
  Json out = Json::array();
  for (const CorpusReport::Skipped& s : skipped) {
    out.push_back({{"reason", s.reason}, {"count", s.count}, {"first", s.example}});
  }
  return out;
}

Json PartJson(const CorpusPart& part) {
  return {{"requests", part.requests},
          {"with_answer", part.with_answer},
          {"texts", part.texts},
          {"bytes", part.bytes}};
}

std::string SkippedText(const CorpusReport::Skipped& s) {
  return fmt::format("skipped {}: {} (first: {})", FormatCount(s.count), s.reason, s.example);
}

std::string PartText(const char* name, const CorpusPart& part) {
  return fmt::format("  {}: {} ({} with {} answer), {}, {}\n", name,
                     FormatCount(part.requests, "request"), FormatCount(part.with_answer),
                     part.with_answer == 1 ? "its" : "their", FormatCount(part.texts, "text"),
                     FormatCount(part.bytes, "byte"));
}

}  // namespace

Json CorpusJson(const CorpusReport& r) {
  Json j;
  j["files"] = r.sources.size();
  j["lines"] = r.lines;
  j["texts"] = r.texts;
  j["bytes"] = r.bytes;
  j["skipped"] = SkippedJson(r.skipped);
  j["duplicates"] = r.duplicates;
  j["shared_prefix"] = r.shared_prefix;
  j["not_sampled"] = r.not_sampled;
  j["redactions"] = r.redactions;
  j["calibration"] = PartJson(r.calibration);
  j["held_out"] = PartJson(r.held_out);
  j["corpus_xxh3"] = fmt::format("{:016x}", r.hash);
  j["calibration_xxh3"] = fmt::format("{:016x}", r.calibration_hash);
  j["notes"] = r.notes;
  return j;
}

Json WindowsJson(const WindowsReport& r) {
  Json j;
  j["context_len"] = r.context_len;
  j["tokens"] = r.tokens;
  j["windows"] = r.windows;
  j["sequences"] = r.sequences;
  j["length"] = {{"median", r.median}, {"p90", r.p90}, {"max", r.max}};
  j["full_length"] = r.full_length;
  j["cut"] = r.cut;
  j["cut_tokens"] = r.cut_tokens;
  j["joined"] = r.joined;
  j["left_out_tokens"] = r.left_out_tokens;
  j["repeated_tokens"] = r.repeated_tokens;
  j["too_short"] = r.too_short;
  j["skipped"] = SkippedJson(r.skipped);
  j["notes"] = r.notes;
  j["warnings"] = r.warnings;
  return j;
}

std::vector<std::string> CorpusLosses(const CorpusReport& r) {
  std::vector<std::string> out;
  for (const CorpusReport::Skipped& s : r.skipped) out.push_back(SkippedText(s));
  const auto line = [&](int64_t count, const char* what) {
    if (count > 0) out.push_back(fmt::format("{} {}", FormatCount(count), what));
  };
  line(r.duplicates, "dropped as duplicates");
  line(r.shared_prefix, "dropped for a longer one that begins alike");
  line(r.not_sampled, "not in the sample (--max-tokens)");
  return out;
}

std::string CorpusText(const CorpusReport& r) {
  std::string out = fmt::format("data: {}, {} of logs, {}\n",
                                FormatCount(static_cast<int64_t>(r.sources.size()), "file"),
                                FormatCount(r.lines, "line"), FormatCount(r.texts, "text"));
  for (const std::string& line : CorpusLosses(r)) out += "  " + line + "\n";
  if (r.redactions > 0)
    out += fmt::format("  {} redacted\n", FormatCount(r.redactions, "match", "matches"));
  out += PartText("calibration", r.calibration);
  out += PartText("held out", r.held_out);
  for (const std::string& note : r.notes) out += "  note: " + note + "\n";
  return out;
}

std::string WindowsText(const WindowsReport& r) {
  std::string out = fmt::format(
      "tokens: {} in {} of up to {}; {} of median {}, 90 % {}, longest {}\n", FormatCount(r.tokens),
      FormatCount(r.windows, "window"), FormatCount(r.context_len),
      FormatCount(r.sequences, "request or text", "requests and texts"), FormatCount(r.median),
      FormatCount(r.p90), FormatCount(r.max));
  const auto line = [&](int64_t count, const std::string& what) {
    if (count > 0) out += fmt::format("  {} {}\n", FormatCount(count), what);
  };
  line(r.cut, fmt::format("longer than a window: cut ({} tokens of requests left out)",
                          FormatCount(r.cut_tokens)));
  line(r.joined, "short ones share windows");
  line(r.left_out_tokens, "tokens left out, beyond what was asked for");
  line(r.repeated_tokens, "tokens of prompts that come again, with another answer");
  line(r.too_short, fmt::format("ends under {} tokens left out", kMinWindow));
  for (const CorpusReport::Skipped& s : r.skipped) out += "  " + SkippedText(s) + "\n";
  for (const std::string& note : r.notes) out += "  note: " + note + "\n";
  for (const std::string& warning : r.warnings) out += "  warning: " + warning + "\n";
  return out;
}

}  // namespace tq
