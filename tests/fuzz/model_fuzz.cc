// Any bytes as a model: an error that says what is wrong, or a model that reads a few tokens.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/model/llama.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static tq::ThreadPool pool(1);
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  tq::Result<tq::GgufFile> file = tq::GgufFile::Parse({bytes, size}, "fuzz");
  if (!file.ok()) return 0;
  const auto model = tq::LlamaModel::Create(std::make_unique<tq::GgufFile>(std::move(*file)),
                                            tq::MakeCpuBackend(pool), {});
  if (!model.ok()) {
    TQ_CHECK(!model.status().message().empty());
    return 0;
  }
  const tq::Architecture& a = (*model)->arch();
  tq::CacheConfig config = (*model)->MakeCacheConfig();
  for (size_t i = 0; i < config.formats.size(); ++i) {
    const int layer = static_cast<int>(i) / a.num_kv_heads;
    if (a.window(layer) == 0) config.formats[i] = *tq::ParsePreset("k4v4");
  }
  const auto cache = tq::KvCache::Create(config);
  TQ_CHECK(cache.ok());  // whatever the file says, its cache can be made
  const std::vector<int32_t> tokens(3, a.vocab_size - 1);
  const tq::ForwardItem item = {(*cache)->NewSequence(), tokens, true};
  std::vector<float> logits;
  TQ_CHECK((*model)->Forward(**cache, {&item, 1}, &logits).ok());
  TQ_CHECK(logits.size() == 3 * static_cast<size_t>(a.vocab_size));
  return 0;
}
