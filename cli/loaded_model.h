// A model with its tokenizer, opened as the commands need it.
#pragma once

#include <memory>
#include <string>

#include "cli/common.h"
#include "cli/kv_choice.h"
#include "runtime/model/model.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/thread_pool.h"

namespace tq::cli {

struct LoadedModel {
  std::string path;
  std::unique_ptr<ThreadPool> pool;  // outlives the model
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;

  KvModel ForKv() const;
};

// xxh3 over the names and the bytes of all tensors, in the order of their names.
uint64_t WeightsHash(const GgufFile& file);

// `context` as for Model::Load.
Result<LoadedModel> LoadModel(const ModelFlags& flags, const OutputFlags& output,
                              int64_t context = 0);

// --context, or what the model was trained for; says so when it is longer than that.
Result<int64_t> ContextLen(int64_t asked, int trained, const OutputFlags& output);

}  // namespace tq::cli
