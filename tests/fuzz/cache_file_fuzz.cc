// Any bytes as a cache file, and a good file with any bytes changed and its sums made right: an
// error, or a sequence that can be appended to and truncated.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "turboquant/base/file.h"
#include "turboquant/cache/snapshot.h"
#include "turboquant/cache/snapshot_test_util.h"

namespace {

std::unique_ptr<tq::KvCache> MakeCache() {
  tq::CacheConfig config;
  config.num_layers = config.num_kv_heads = 1;
  config.head_dim = 2;
  config.recent_len = 64;
  config.formats = {*tq::ParsePreset("k3v2")};
  return *tq::KvCache::Create(config);
}

void Append(tq::KvCache& cache, tq::SeqId seq, int n) {
  static tq::ThreadPool pool(1);
  const std::vector<float> rows(static_cast<size_t>(n) * 2, 0.5f);
  TQ_CHECK(cache.BeginAppend(seq, n).ok());
  TQ_CHECK(cache.AppendLayer(seq, 0, rows.data(), rows.data(), pool).ok());
  TQ_CHECK(cache.CommitAppend(seq).ok());
}

std::string Saved(const tq::KvCache& cache, tq::SeqId seq) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("cache_file_fuzz" + std::to_string(::getpid())))
          .string();
  tq::SnapshotMeta meta;
  meta.tokens.resize(static_cast<size_t>(*cache.Length(seq)));
  TQ_CHECK(tq::SaveSnapshot(cache, seq, meta, path).ok());
  std::string bytes = *tq::ReadFile(path);
  std::filesystem::remove(path);
  return bytes;
}

// 300 tokens: sink, sealed blocks, blocks in both forms, a partial one.
const std::string& GoodFile() {
  static const std::string file = [] {
    const auto cache = MakeCache();
    const tq::SeqId seq = cache->NewSequence();
    Append(*cache, seq, 300);
    return Saved(*cache, seq);
  }();
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string file(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) {
    // Triples of an offset (16 bits) and a byte.
    file = GoodFile();
    for (size_t i = 1; i + 3 <= size; i += 3) {
      const size_t at = data[i] + size_t{256} * data[i + 1];
      file[at % file.size()] = static_cast<char>(data[i + 2]);
    }
    tq::testing_util::FixSums(&file);
  }
  const auto snapshot = tq::Snapshot::Parse(std::as_bytes(std::span(file)), "fuzz");
  if (!snapshot.ok()) {
    TQ_CHECK(!snapshot.status().message().empty());
    return 0;
  }
  const auto cache = MakeCache();
  const auto seq = snapshot->Restore(*cache, snapshot->meta().structure_hash);
  if (!seq.ok()) {
    TQ_CHECK(cache->Bytes().total() == 0);
    return 0;
  }
  const int64_t length = *cache->Length(*seq);
  Append(*cache, *seq, 100);
  TQ_CHECK(cache->Truncate(*seq, length / 2).ok());
  Append(*cache, *seq, 200);
  return 0;
}
