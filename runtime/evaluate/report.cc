// The table, the answers and the numbers of the charts; the page itself is report.html.
#include "runtime/evaluate/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "runtime/evaluate/footprint.h"
#include "runtime/evaluate/page.h"
#include "runtime/evaluate/report_assets.h"

namespace tq {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

std::string Cell(const std::string& text) {
  return "<td>" + text + "</td>";
}

std::string Table(const CompareResult& result) {
  std::string out =
      "<table><thead><tr><th>Format</th><th>Cache<br>MiB</th><th>Ratio<br>here</th>"
      "<th>Ratio at<br>131,072</th><th>Bits per<br>value</th><th>Scales</th>"
      "<th>ms per<br>token</th><th>KL mean</th><th>KL 99&nbsp;%</th>"
      "<th>KL mean,<br>&ge;&nbsp;1,024 quantized</th><th>Same top</th><th>Perplexity</th>"
      "</tr></thead><tbody>";
  for (const CompareRow& row : result.rows) {
    out += row.on_pareto_front ? "<tr class=\"front\">" : "<tr>";
    out += Cell(EscapeHtml(row.name));
    out += Cell(fmt::format("{:.2f}", static_cast<double>(row.bytes.total()) / kMiB));
    out += Cell(fmt::format("{:.2f}x", row.ratio));
    out += Cell(fmt::format("{:.2f}x", row.ratio_at_131072));
    out += Cell(fmt::format("{:.3f}", row.bits_per_value));
    out += Cell(fmt::format("{:.1f} %", 100 * row.scales_share));
    out += Cell(fmt::format("{:.2f}", row.decode_ms));
    if (row.is_plain) {
      out += Cell("reference") + Cell("") + Cell("") + Cell("");
    } else {
      out += Cell(fmt::format("{:.5f} &plusmn; {:.5f}", row.all.mean, row.all.mean_stderr));
      out += Cell(fmt::format("{:.4f}", row.all.p99));
      out += Cell(row.behind.positions == 0 ? "none yet" : fmt::format("{:.5f}", row.behind.mean));
      out += Cell(fmt::format("{:.2f} %", 100 * row.all.same_top));
    }
    out += Cell(row.is_plain ? fmt::format("{:.3f}", row.all.ppl_ref)
                             : fmt::format("{:.3f} ({:+.2f} %)", row.all.ppl_q,
                                           100 * (row.all.ppl_ratio - 1)));
    out += "</tr>";
  }
  return out + "</tbody></table>";
}

std::string Answers(const CompareResult& result) {
  const bool judged = !result.document.expected.empty();
  std::string out = "<table class=\"answers\"><tbody>";
  for (const CompareRow& row : result.rows) {
    out += "<tr>" + Cell(EscapeHtml(row.name));
    if (judged) {
      out +=
          row.answer_is_right ? "<td class=\"good\">found</td>" : "<td class=\"bad\">missed</td>";
    } else {
      out += Cell("");
    }
    out += Cell(EscapeHtml(row.answer)) + "</tr>";
  }
  return out + "</tbody></table>";
}

std::string Question(const CompareResult& result) {
  const Document& d = result.document;
  std::string out;
  if (!d.detail.empty()) {
    out = "Planted at 40 % of the text: &ldquo;" + EscapeHtml(d.detail) + "&rdquo; ";
  }
  return out + "The document ends with &ldquo;" + EscapeHtml(d.question) +
         "&rdquo; and each cache goes on, greedily:";
}

// One sentence on the quantized row with the fewest bits.
std::string Summary(const CompareResult& result) {
  const CompareRow* best = nullptr;
  for (const CompareRow& row : result.rows) {
    if (!row.is_plain && (best == nullptr || row.bits_per_value < best->bits_per_value)) {
      best = &row;
    }
  }
  if (best == nullptr) return "";
  return fmt::format(
      "<p>With <b>{}</b> the cache of this document takes {:.1f} MiB instead of {:.1f} "
      "({:.1f} times smaller, {:.1f} times at 131,072 tokens), a token takes {:.1f} ms instead of "
      "{:.1f}, the mean KL is {:.4f} nats and the most probable token is the same at {:.1f} % of "
      "the positions.</p>",
      EscapeHtml(best->name), static_cast<double>(best->bytes.total()) / kMiB,
      static_cast<double>(best->f16_bytes) / kMiB, best->ratio, best->ratio_at_131072,
      best->decode_ms, result.plain.decode_ms, best->all.mean, 100 * best->all.same_top);
}

std::string ProvenanceList(const CompareResult& result, const Provenance& p) {
  std::string out;
  const auto add = [&](const char* name, const std::string& value) {
    out += fmt::format("<dt>{}</dt><dd>{}</dd>", name, EscapeHtml(value));
  };
  const CacheConfig& cache = result.plain.config;
  add("Model", result.model_name + ", " + p.model_path);
  add("Weights", p.weight_types);
  add("Tokenizer", p.tokenizer);
  add("Text", fmt::format("{}, {} bytes of it, {} tokens with the question", result.document.name,
                          result.document.text_bytes, result.tokens));
  add("Window", fmt::format("{} recent tokens and {} first ones at {} bit (rounded up to blocks of "
                            "{})",
                            cache.recent_len, cache.sink_len,
                            cache.recent == RecentType::kQ8 ? 8 : 16, kPageLen));
  for (const CompareRow& row : result.rows) add("Kernel", row.name + ": " + row.kernel);
  add("Machine", fmt::format("{}, {} threads, {}", p.machine, p.threads, p.isa));
  add("Version", "tq " + p.version);
  if (!p.command.empty())
    out += "<dt>Command</dt><dd><code>" + EscapeHtml(p.command) + "</code></dd>";
  return out;
}

std::string ChartData(const CompareResult& result) {
  nlohmann::ordered_json data;
  data["tokens"] = result.tokens;
  data["contexts"] = nlohmann::json::array();
  for (int64_t n = 1024; n <= 131072; n *= 2) data["contexts"].push_back(n);
  data["rows"] = nlohmann::json::array();
  int index = 1;
  for (const CompareRow& row : result.rows) {
    nlohmann::ordered_json j;
    j["name"] = row.name;
    j["plain"] = row.is_plain;
    j["index"] = row.is_plain ? 0 : index++;
    j["bits"] = row.bits_per_value;
    j["kld"] = row.all.mean;
    j["front"] = row.on_pareto_front;
    j["memory_mib"] = nlohmann::json::array();
    for (int64_t n = 1024; n <= 131072; n *= 2) {
      j["memory_mib"].push_back(static_cast<double>(CacheFootprint(row.config, n).total()) / kMiB);
    }
    j["by_position"] = nlohmann::json::array();
    for (const PositionBucket& b : row.by_position) {
      if (b.kld_mean <= 0) continue;  // has no place on a logarithmic axis
      j["by_position"].push_back(
          {{"x", 0.5 * static_cast<double>(b.first + b.end)}, {"y", b.kld_mean}});
    }
    j["by_depth"] = nlohmann::json::array();
    for (const DepthTime& t : row.by_depth) {
      j["by_depth"].push_back({{"x", t.depth}, {"y", t.median_ms}});
    }
    data["rows"].push_back(std::move(j));
  }
  return ForScript(data.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

}  // namespace

std::string RenderReport(const CompareResult& result, const Provenance& provenance) {
  const std::string name = EscapeHtml(result.model_name);
  return FillPage(
      kReportTemplate,
      {{"title", "KV cache formats compared: " + name},
       {"subtitle", fmt::format("{} tokens of {} through each cache, side by side", result.tokens,
                                EscapeHtml(result.document.name))},
       {"summary", Summary(result)},
       {"table", Table(result)},
       {"floor", fmt::format("Noise floor: {} has a mean KL of {:.6f}.",
                             EscapeHtml(result.floor_name), result.floor.mean)},
       {"question", Question(result)},
       {"answers", Answers(result)},
       {"verdict",
        AnswersAreInformative(result)
            ? ""
            : "<p class=\"note\">The plain cache misses the detail too: here the answers "
              "say nothing about the formats.</p>"},
       {"provenance", ProvenanceList(result, provenance)},
       {"data", ChartData(result)}});
}

}  // namespace tq
