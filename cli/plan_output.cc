#include "cli/plan_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/common.h"
#include "cli/table.h"

namespace tq::cli {
namespace {

using Json = nlohmann::ordered_json;

double AsDouble(size_t bytes) {
  return static_cast<double>(bytes);
}

std::string Ms(const std::optional<double>& ms) {
  return ms ? fmt::format("{:.2f}", *ms) : "-";
}

// Small plans are told in MiB and MB.
struct Units {
  explicit Units(const Survey& survey) {
    size_t most = 0;
    for (const SurveyRow& r : survey.rows) most = std::max(most, r.memory.total_bytes);
    if (most < size_t{4} << 30) {
      binary_name = "MiB";
      decimal_name = "MB";
      binary = 1024.0 * 1024.0;
      decimal = 1e6;
    }
  }
  std::string Binary(size_t bytes) const { return fmt::format("{:.2f}", AsDouble(bytes) / binary); }
  std::string Decimal(size_t bytes) const {
    return fmt::format("{:.2f}", AsDouble(bytes) / decimal);
  }
  std::string binary_name = "GiB", decimal_name = "GB";
  double binary = 1024.0 * 1024.0 * 1024.0, decimal = 1e9;
};

std::string LongestText(const Survey& survey, int64_t context) {
  if (context == 0) return "-";
  if (context == Planner::kMaxContext) return "any";
  std::string text = FormatCount(context);
  if (survey.spec.context_len > 0 && context > survey.spec.context_len) text += "*";
  return text;
}

std::string Header(const Survey& survey) {
  const ModelSpec& s = survey.spec;
  const Machine& m = survey.machine;
  std::string out = fmt::format("{} ({}): {}\n", s.name, s.family, s.DescribeLayers());
  const auto add = [&](const char* what, const std::string& text) {
    out += fmt::format("{:<9}{}\n", what, text);
  };
  if (s.params() > 0) {
    std::string weights = fmt::format("{:.3f} G", s.params() / 1e9);
    if (s.num_experts > 0) {
      weights += fmt::format(", {:.3f} G of them for a token ({} of {} experts)",
                             s.active_params() / 1e9, s.experts_per_token, s.num_experts);
    }
    if (!s.file_types.empty()) weights += "; in the file: " + s.file_types;
    add("weights:", weights);
  }
  if (s.context_len > 0) add("trained:", FormatCount(s.context_len) + " tokens");
  std::string machine = survey.num_devices > 1 ? fmt::format("{} x ", survey.num_devices) : "";
  machine += fmt::format("{}, {}", m.title, FormatBoth(AsDouble(m.memory_bytes)));
  if (m.read_bytes_per_second > 0) {
    machine += fmt::format(", {:.1f} GB/s", m.read_bytes_per_second / 1e9);
  }
  add("machine:", machine);
  if (!m.source.empty()) add("", m.source);
  for (const std::string& note : s.notes) add("note:", note);
  return out;
}

std::string LinesTable(const Survey& survey, const SurveyRow& row) {
  std::string out = fmt::format("\nMemory{}, {} cache, {} weights, {} tokens{}:\n",
                                survey.num_devices > 1 ? " of one device" : "", row.kv, row.weights,
                                FormatCount(row.context),
                                row.batch > 1 ? fmt::format(" x {} sequences", row.batch) : "");
  const Units units(survey);
  TextTable table({"", units.binary_name, units.decimal_name, "bytes", "note"}, {0, 4});
  for (const MemoryLine& l : row.memory.lines) {
    table.Add({l.name, units.Binary(l.bytes), units.Decimal(l.bytes),
               FormatCount(static_cast<int64_t>(l.bytes)),
               l.note + (l.uncertain ? " (estimate)" : "")});
  }
  const auto total = static_cast<int64_t>(row.memory.total_bytes);
  table.Add({"total", units.Binary(row.memory.total_bytes), units.Decimal(row.memory.total_bytes),
             FormatCount(total), ""});
  out += table.ToString();
  if (row.memory.largest_uncertain < row.memory.lines.size()) {
    const MemoryLine& l = row.memory.lines[row.memory.largest_uncertain];
    out += fmt::format("Largest uncertain item: {}, {}.\n", l.name, FormatBoth(AsDouble(l.bytes)));
  }
  return out;
}

std::string FormatsTable(const Survey& survey) {
  const auto many = [&](auto get) {
    std::set<std::string> seen;
    for (const SurveyRow& r : survey.rows) seen.insert(get(r));
    return seen.size() > 1;
  };
  const bool batches = many([](const SurveyRow& r) { return std::to_string(r.batch); });
  const bool weights = many([](const SurveyRow& r) { return r.weights; });
  std::vector<std::string> header = {"context"};
  if (batches) header.emplace_back("batch");
  if (weights) header.emplace_back("weights");
  const Units units(survey);
  const bool times = survey.machine.read_bytes_per_second > 0;
  const bool first = times && survey.machine.flops > 0;
  for (const std::string& h :
       {std::string("kv"), std::string("bits per\nvalue"), "cache\n" + units.binary_name,
        "cache\n" + units.decimal_name, std::string("ratio"), "total\n" + units.binary_name,
        std::string("fits")}) {
    header.push_back(h);
  }
  if (times) header.emplace_back("ms per\ntoken");
  if (first) header.emplace_back("first\ntoken s");
  header.emplace_back("longest\ncontext");
  header.emplace_back("most\nsequences");
  TextTable table(header, {});
  bool beyond = false, compute = false;
  for (const SurveyRow& r : survey.rows) {
    std::vector<std::string> cells = {FormatCount(r.context)};
    if (batches) cells.push_back(std::to_string(r.batch));
    if (weights) cells.push_back(r.weights);
    cells.push_back(r.kv);
    cells.push_back(fmt::format("{:.3f}", r.bits_per_value));
    cells.push_back(units.Binary(r.memory.cache_bytes));
    cells.push_back(units.Decimal(r.memory.cache_bytes));
    cells.push_back(FormatRatio(r.memory.ratio()));
    cells.push_back(units.Binary(r.memory.total_bytes));
    cells.emplace_back(r.fits ? "yes" : "no");
    if (times) cells.push_back(Ms(r.step.ms) + (r.step.compute_bound ? "^" : ""));
    if (first)
      cells.push_back(r.first_token_seconds ? fmt::format("{:.2f}", *r.first_token_seconds) : "-");
    cells.push_back(LongestText(survey, r.max_context));
    beyond |= cells.back().back() == '*';
    compute |= r.step.compute_bound;
    cells.push_back(r.max_sequences == Planner::kMaxBatch ? "any" : FormatCount(r.max_sequences));
    table.Add(std::move(cells));
  }
  std::string out = "\n" + table.ToString();
  if (beyond) out += "* beyond what the model was trained for.\n";
  if (compute) out += "^ bound by arithmetic, not by bandwidth.\n";
  return out;
}

std::string SpeedNotes(const Survey& survey) {
  std::string out;
  const Machine& m = survey.machine;
  if (m.read_bytes_per_second <= 0) {
    out +=
        "Times: the bandwidth of this machine is not known; give --bandwidth GB/s (tq bench "
        "bandwidth measures it).\n";
  } else {
    out += "Times are the roofline: bytes read over bandwidth, nothing else waits.\n";
    if (m.flops <= 0) out += "First token: the machine's FLOP/s are not known.\n";
  }
  const SurveyRow& row = MainRow(survey);
  if (row.break_even.context) {
    out += fmt::format("{} pays from {} tokens on: {}.\n", row.kv,
                       FormatCount(*row.break_even.context), row.break_even.reason);
  } else {
    out += fmt::format("{} does not pay: {}.\n", row.kv, row.break_even.reason);
  }
  const int keeps = static_cast<int>(
      std::count_if(survey.spec.layers.begin(), survey.spec.layers.end(),
                    [](const LayerSpec& l) { return l.kind != LayerKind::kFull; }));
  if (keeps > 0) {
    out += fmt::format(
        "Quantized: {} of {} layers; windows and states stay as they are. Only layers of kind "
        "'full' run in this version; the others are planned.\n",
        row.quantized_layers, survey.spec.num_layers());
  }
  return out;
}

Json OptionalJson(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json RowJson(const SurveyRow& r) {
  Json j;
  j["context"] = r.context;
  j["batch"] = r.batch;
  j["weights"] = r.weights;
  j["kv"] = r.kv;
  const CacheParts& one = r.memory.sequence;
  j["cache"] = {{"total_bytes", r.memory.cache_bytes},
                {"f16_bytes", r.memory.f16_bytes},
                {"ratio", r.memory.ratio()},
                {"bits_per_value", r.bits_per_value},
                {"payload_bytes", one.payload},
                {"scales_bytes", one.scales},
                {"window_bytes", one.recent + one.sinks},
                {"sliding_window_bytes", one.windows},
                {"state_bytes", one.states},
                {"tables_bytes", one.tables},
                {"in_flight_bytes", one.in_flight}};
  j["weights_bytes"] = r.memory.weights_bytes;
  j["total_bytes"] = r.memory.total_bytes;
  j["fits"] = r.fits;
  j["lines"] = Json::array();
  for (const MemoryLine& l : r.memory.lines) {
    j["lines"].push_back(
        {{"name", l.name}, {"bytes", l.bytes}, {"note", l.note}, {"estimate", l.uncertain}});
  }
  const bool uncertain = r.memory.largest_uncertain < r.memory.lines.size();
  j["largest_uncertain"] =
      uncertain ? Json(r.memory.lines[r.memory.largest_uncertain].name) : Json(nullptr);
  j["decode_ms_roofline"] = OptionalJson(r.step.ms);
  j["decode_bytes"] = {{"weights", r.step.weight_bytes}, {"cache", r.step.cache_bytes}};
  j["bound_by"] = r.step.compute_bound ? "arithmetic" : "bandwidth";
  j["first_token_seconds"] = OptionalJson(r.first_token_seconds);
  j["max_context"] = r.max_context;
  j["max_sequences"] = r.max_sequences;
  j["break_even_context"] = r.break_even.context ? Json(*r.break_even.context) : Json(nullptr);
  j["break_even_reason"] = r.break_even.reason;
  j["quantized_layers"] = r.quantized_layers;
  if (r.overflow.bytes > 0) {
    j["overflow"] = {{"bytes", r.overflow.bytes},
                     {"swap_ms", OptionalJson(r.overflow.swap_ms)},
                     {"recompute_ms", OptionalJson(r.overflow.recompute_ms)},
                     {"resident_ms", OptionalJson(r.overflow.resident_ms)}};
  }
  return j;
}

}  // namespace

const SurveyRow& MainRow(const Survey& survey) {
  const int64_t longest =
      std::max_element(survey.rows.begin(), survey.rows.end(), [](const auto& a, const auto& b) {
        return a.context < b.context;
      })->context;
  const auto quantized =
      std::find_if(survey.rows.begin(), survey.rows.end(),
                   [&](const SurveyRow& r) { return r.context == longest && r.kv != "f16"; });
  if (quantized != survey.rows.end()) return *quantized;
  return *std::find_if(survey.rows.begin(), survey.rows.end(),
                       [&](const SurveyRow& r) { return r.context == longest; });
}

std::string PlanText(const Survey& survey) {
  std::string out = Header(survey);
  out += LinesTable(survey, MainRow(survey));
  out += FormatsTable(survey);
  out += SpeedNotes(survey);
  out += "\n";
  for (const Verdict& v : survey.verdicts) {
    out += fmt::format("{} tokens{}, {} weights: {}.\n", FormatCount(v.context),
                       v.batch > 1 ? fmt::format(" x {}", v.batch) : "", v.weights, v.text);
  }
  return out;
}

std::string SolveText(const Survey& survey, const std::string& what) {
  std::string out = Header(survey) + "\n";
  if (what == "bits") {
    TextTable table({"context", "batch", "weights", "most bits that fit"}, {2, 3});
    for (const Verdict& v : survey.verdicts) {
      table.Add({FormatCount(v.context), std::to_string(v.batch), v.weights,
                 v.best.empty() ? "none of those asked for" : v.best});
    }
    return out + table.ToString();
  }
  const bool context = what == "context";
  TextTable table({context ? "batch" : "context", "weights", "kv",
                   context ? "longest context" : "most sequences"},
                  {1, 2});
  std::set<std::string> seen;
  for (const SurveyRow& r : survey.rows) {
    const std::string given = context ? std::to_string(r.batch) : FormatCount(r.context);
    if (!seen.insert(given + "/" + r.weights + "/" + r.kv).second) continue;
    table.Add({given, r.weights, r.kv,
               context ? LongestText(survey, r.max_context) : FormatCount(r.max_sequences)});
  }
  return out + table.ToString();
}

Json PlanJson(const Survey& survey) {
  Json j;
  const ModelSpec& s = survey.spec;
  j["model"] = s.name;
  j["family"] = s.family;
  j["layers"] = s.DescribeLayers();
  j["num_layers"] = s.num_layers();
  j["params"] = s.params();
  j["active_params"] = s.active_params();
  j["trained_context"] = s.context_len;
  j["values_per_token"] = s.values_per_token();
  const Machine& m = survey.machine;
  j["device"] = {{"name", m.name},
                 {"title", m.title},
                 {"count", survey.num_devices},
                 {"memory_bytes", m.memory_bytes},
                 {"read_bytes_per_second", m.read_bytes_per_second},
                 {"flops", m.flops},
                 {"source", m.source}};
  const Json main = RowJson(MainRow(survey));
  for (const auto& [key, value] : main.items()) j[key] = value;
  j["notes"] = s.notes;
  j["verdicts"] = Json::array();
  for (const Verdict& v : survey.verdicts) {
    j["verdicts"].push_back({{"context", v.context},
                             {"batch", v.batch},
                             {"weights", v.weights},
                             {"fits", v.any_fits},
                             {"most_bits", v.best},
                             {"text", v.text}});
  }
  j["rows"] = Json::array();
  for (const SurveyRow& r : survey.rows) j["rows"].push_back(RowJson(r));
  return j;
}

}  // namespace tq::cli
