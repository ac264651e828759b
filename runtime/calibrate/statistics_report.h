// What was observed of keys, values, queries and attention, for people: a few lines for a terminal,
// charts and a table for a report. The JSON document of a calibration holds all of it.
#pragma once

#include <string>

#include "runtime/calibrate/observe.h"

namespace tq {

// Layers with a sliding window have no statistics and are left out; a distance that no window of
// the text is long enough for too. Empty where nothing is left.
std::string StatisticsText(const ModelStatistics& statistics);
std::string StatisticsCards(const ModelStatistics& statistics);  // HTML, for inside of a section

}  // namespace tq
