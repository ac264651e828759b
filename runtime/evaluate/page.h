// What every HTML report shares: templates, escaping, the embedded style, scripts and Chart.js.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tq {

// A page: page_head.html, then `rest`, their {{name}} marks replaced. {{style}}, {{script}} and
// {{chart_js}} are known; every other mark, {{title}} and {{subtitle}} of the head too, must have a
// value.
std::string FillPage(std::string_view rest,
                     std::vector<std::pair<std::string, std::string>> values);

// "&", "<", ">" and quotes as entities; control characters other than tab and newline as U+FFFD.
std::string EscapeHtml(std::string_view text);

// JSON as it may stand inside a script element.
std::string ForScript(std::string json);

}  // namespace tq
