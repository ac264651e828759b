// A comparison as one self-contained HTML file: charts, table, answers and where it all comes from.
#pragma once

#include <string>

#include "runtime/evaluate/compare.h"
#include "runtime/evaluate/page.h"

namespace tq {

// Where the numbers were measured.
struct Provenance {
  std::string model_path, weight_types, tokenizer;
  std::string machine;  // the processor's name
  int threads = 0;
  std::string isa;
  std::string version;  // of this program
  std::string command;  // that makes the report again
};

// Everything is inlined: no file or network beside it is needed. Text from outside is escaped.
std::string RenderReport(const CompareResult& result, const Provenance& provenance);

}  // namespace tq
