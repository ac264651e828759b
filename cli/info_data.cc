#include "cli/info_data.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/loaded_model.h"
#include "runtime/formats/gguf.h"
#include "runtime/model/architecture.h"
#include "runtime/tokenizer/tokenizer.h"

namespace tq::cli {
namespace {

using Json = nlohmann::ordered_json;

// The two parts as windows; a held-out part that is too small for one is told as such.
Result<std::vector<std::pair<const char*, WindowsReport>>> PackParts(const Tokenizer& tokenizer,
                                                                     const Corpus& corpus,
                                                                     int64_t context,
                                                                     const DataFlags& data) {
  std::vector<std::pair<const char*, WindowsReport>> out;
  TQ_ASSIGN_OR_RETURN(const CorpusEncoder encoder, CorpusEncoder::Create(tokenizer));
  for (const auto& [name, items] :
       {std::pair("calibration", &corpus.calibration), std::pair("held_out", &corpus.held_out)}) {
    if (items->empty()) continue;
    const Result<Windows> windows = PackWindows(encoder, *items, context, 0, data.seed);
    if (!windows.ok()) return windows.status().WithContext(name);
    out.emplace_back(name, windows->report);
  }
  return out;
}

}  // namespace

Result<int> DataInfo(const std::string& model, const DataFlags& data, int64_t context,
                     const OutputFlags& output) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (!model.empty()) {
    TQ_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model));
    TQ_ASSIGN_OR_RETURN(tokenizer, Tokenizer::FromGguf(file));
    TQ_ASSIGN_OR_RETURN(const Architecture arch, Architecture::FromGguf(file, context));
    TQ_ASSIGN_OR_RETURN(context, ContextLen(context, arch.context_len, output));
  } else if (context == 0) {
    context = 2048;
  }
  OutputFlags silent = output;
  silent.quiet = true;  // its notes stand in the report
  TQ_ASSIGN_OR_RETURN(const Corpus corpus, data.Read(context, silent));
  std::vector<std::pair<const char*, WindowsReport>> parts;
  if (tokenizer != nullptr) {
    TQ_ASSIGN_OR_RETURN(parts, PackParts(*tokenizer, corpus, context, data));
  }
  if (output.json) {
    Json j;
    j["data"] = CorpusJson(corpus.report);
    for (const auto& [name, report] : parts) j["windows"][name] = WindowsJson(report);
    PrintOut(j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return kDone;
  }
  PrintOut(CorpusText(corpus.report));
  for (const auto& [name, report] : parts) {
    PrintOut("\n" + std::string(name == std::string("held_out") ? "held out" : name) + " " +
             WindowsText(report));
  }
  return kDone;
}

}  // namespace tq::cli
