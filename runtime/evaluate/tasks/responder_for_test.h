// A responder whose answers a test makes.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "runtime/evaluate/fakes_for_test.h"
#include "runtime/evaluate/tasks/responder.h"

namespace tq {

class FakeResponder : public Responder {
 public:
  // Gets a body, returns what `choices` of the response holds.
  using Answer = std::function<Result<nlohmann::ordered_json>(const nlohmann::ordered_json& body)>;

  FakeResponder(std::string name, bool is_local, Answer answer)
      : name_(std::move(name)), is_local_(is_local), answer_(std::move(answer)) {}
  Result<nlohmann::ordered_json> Respond(const nlohmann::ordered_json& request,
                                         const std::atomic<bool>*) override {
    ++calls;
    TQ_ASSIGN_OR_RETURN(nlohmann::ordered_json choice, answer_(request));
    return nlohmann::ordered_json{{"choices", {std::move(choice)}}};
  }
  const std::string& name() const override { return name_; }
  bool deterministic() const override { return is_local_; }
  const Tokenizer* tokenizer() const override { return is_local_ ? &bytes_ : nullptr; }

  int calls = 0;

 private:
  std::string name_;
  bool is_local_;
  Answer answer_;
  ByteTokenizer bytes_;
};

}  // namespace tq
