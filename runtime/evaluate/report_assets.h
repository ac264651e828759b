// Files that the build embeds (embed.cmake).
#pragma once

#include <string_view>

namespace tq {

extern const std::string_view kChartJs;           // Chart.js, minified
extern const std::string_view kReportStyle;       // report.css
extern const std::string_view kReportScript;      // report.js: what all charts share
extern const std::string_view kPageHead;          // page_head.html: what all pages begin with
extern const std::string_view kReportTemplate;    // report.html
extern const std::string_view kPlanTemplate;      // plan_report.html
extern const std::string_view kSectionsTemplate;  // sections.html
extern const std::string_view kSectionsScript;    // sections.js
extern const std::string_view kDefaultGate;       // suite/default_gate.json

}  // namespace tq
