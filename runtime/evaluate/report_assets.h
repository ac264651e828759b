// Files that the build embeds (embed.cmake).
#pragma once

#include <string_view>

namespace tq {

extern const std::string_view kChartJs;         // Chart.js, minified
extern const std::string_view kReportTemplate;  // report.html

}  // namespace tq
