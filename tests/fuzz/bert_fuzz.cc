// A config.json, a zero byte, then a model.safetensors: an encoder of sentences.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/model/bert_encoder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const uint8_t* end = std::find(data, data + size, uint8_t{0});
  if (end == data + size) return 0;
  const std::string config(reinterpret_cast<const char*>(data), static_cast<size_t>(end - data));
  const std::span<const std::byte> bytes =
      std::as_bytes(std::span(data, size)).subspan(config.size() + 1);
  auto weights = tq::SafetensorsFile::Parse(bytes, "fuzz");
  if (!weights.ok()) return 0;
  static tq::ThreadPool pool(1);
  const auto encoder = tq::BertEncoder::Build(config, *std::move(weights), pool);
  if (!encoder.ok()) return 0;
  const int32_t last = (*encoder)->vocab_size() - 1;
  const auto vector = (*encoder)->Encode(std::vector<int32_t>{last});
  if (vector.ok()) {
    TQ_CHECK(vector->size() == static_cast<size_t>((*encoder)->dim()));
    for (const float x : *vector) TQ_CHECK(std::isfinite(x));
  }
  TQ_CHECK(!(*encoder)->Encode(std::vector<int32_t>{last + 1}).ok());
  return 0;
}
