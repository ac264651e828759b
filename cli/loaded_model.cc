#include "cli/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "turboquant/base/numeric.h"

namespace tq::cli {

KvModel LoadedModel::ForKv() const {
  const Model* m = model.get();
  return {m->MakeCacheConfig(), path, m->StructureHash(), [m] { return WeightsHash(m->file()); },
          &m->file()};
}

uint64_t WeightsHash(const GgufFile& file) {
  std::vector<const GgufTensor*> tensors;
  for (const GgufTensor& t : file.tensors()) tensors.push_back(&t);
  std::sort(tensors.begin(), tensors.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->name < b->name; });
  uint64_t hash = 0;
  for (const GgufTensor* t : tensors) {
    hash = Hash64(t->name.data(), t->name.size(), hash);
    hash = Hash64(file.Data(*t).bytes(), hash);
    file.Release(*t);
  }
  return hash;
}

Result<LoadedModel> LoadModel(const ModelFlags& flags, const OutputFlags& output, int64_t context) {
  TQ_RETURN_IF_ERROR(flags.Validate());
  LoadedModel loaded;
  TQ_ASSIGN_OR_RETURN(loaded.path, flags.Path());
  if (flags.model.empty()) PrintNote(output, "model: " + loaded.path);
  loaded.pool = std::make_unique<ThreadPool>(flags.threads);
  ProgressBar progress(output.quiet);
  TQ_ASSIGN_OR_RETURN(loaded.model,
                      Model::Load(loaded.path, *loaded.pool, progress.sink(), context));
  TQ_ASSIGN_OR_RETURN(loaded.tokenizer, Tokenizer::FromGguf(loaded.model->file()));
  return loaded;
}

Result<int64_t> ContextLen(int64_t asked, int trained, const OutputFlags& output) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (asked < 0 || asked > kMost) {
    return InvalidArgument("--context ", asked, " is outside 1..", kMost);
  }
  if (asked == 0) return trained > 0 ? trained : 8192;
  if (trained > 0 && asked > trained) {
    PrintNote(output, fmt::format("context: the model was trained for {} tokens; answers beyond "
                                  "that may be poor, whatever the cache",
                                  FormatCount(trained)));
  }
  return asked;
}

}  // namespace tq::cli
