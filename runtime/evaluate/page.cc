#include "runtime/evaluate/page.h"

#include "runtime/evaluate/report_assets.h"

namespace tq {

std::string FillPage(std::string_view rest,
                     std::vector<std::pair<std::string, std::string>> values) {
  values.insert(values.end(), {{"style", std::string(kReportStyle)},
                               {"script", std::string(kReportScript)},
                               {"chart_js", std::string(kChartJs)}});
  const std::string page = std::string(kPageHead).append(rest);
  std::string out;
  for (size_t at = 0;;) {
    const size_t open = page.find("{{", at);
    if (open == std::string::npos) return out.append(page, at);
    const size_t close = page.find("}}", open);
    out.append(page, at, open - at);
    const std::string name = page.substr(open + 2, close - open - 2);
    for (const auto& [key, value] : values) {
      if (key == name) out += value;
    }
    at = close + 2;
  }
}

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n') {
          out += "\xEF\xBF\xBD";
        } else {
          out += c;
        }
    }
  }
  return out;
}

std::string ForScript(std::string json) {
  // Only strings hold "<". Without it neither "</script" nor "<!--" can change how a page is read.
  for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;) {
    json.replace(at, 1, "\\u003c");
  }
  return json;
}

}  // namespace tq
