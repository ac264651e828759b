// A probe of a model's attention outputs for as long as a measurement runs.
#pragma once

#include <utility>

#include "runtime/model/model.h"

namespace tq {

// Sets the output probe; an empty function leaves the model as it is.
class ScopedOutputProbe {
 public:
  ScopedOutputProbe(Model& model, Model::AttentionProbe probe) : model_(probe ? &model : nullptr) {
    if (model_ != nullptr) model_->set_output_probe(std::move(probe));
  }
  ~ScopedOutputProbe() {
    if (model_ != nullptr) model_->set_output_probe({});
  }
  ScopedOutputProbe(const ScopedOutputProbe&) = delete;
  ScopedOutputProbe& operator=(const ScopedOutputProbe&) = delete;

 private:
  Model* model_;
};

}  // namespace tq
