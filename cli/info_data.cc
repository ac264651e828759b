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

// One of the two parts as windows, or why there are none.
struct Part {
  const char* name;  // the key of --json
  const char* title;
  Result<Windows> windows;
};

Result<std::vector<Part>> PackParts(const Tokenizer& tokenizer, const Corpus& corpus,
                                    int64_t context, const DataFlags& data) {
  std::vector<Part> out;
  TQ_ASSIGN_OR_RETURN(const CorpusEncoder encoder, CorpusEncoder::Create(tokenizer));
  const auto add = [&](const char* name, const char* title, const std::vector<CorpusItem>& items,
                       WindowsUse use) {
    if (items.empty()) return;
    out.push_back({name, title, PackWindows(encoder, items, context, 0, data.seed, use)});
  };
  add("calibration", "calibration", corpus.calibration, WindowsUse::kCalibration);
  add("held_out", "held out", corpus.held_out, WindowsUse::kEvaluation);
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
  TQ_ASSIGN_OR_RETURN(const Corpus corpus, data.Read(context, output, DataFlags::Notes::kLeave));
  std::vector<Part> parts;
  if (tokenizer != nullptr) {
    TQ_ASSIGN_OR_RETURN(parts, PackParts(*tokenizer, corpus, context, data));
  }
  if (output.json) {
    Json j;
    j["data"] = CorpusJson(corpus.report);
    for (const Part& part : parts) {
      const Result<Windows>& w = part.windows;
      j["windows"][part.name] =
          w.ok() ? WindowsJson(w->report) : Json{{"windows", 0}, {"why", w.status().message()}};
    }
    PrintOut(j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return kDone;
  }
  PrintOut(CorpusText(corpus.report));
  for (const Part& part : parts) {
    const Result<Windows>& w = part.windows;
    PrintOut(std::string("\n") + part.title +
             (w.ok() ? " " + WindowsText(w->report) : ": " + w.status().message() + "\n"));
  }
  return kDone;
}

}  // namespace tq::cli
