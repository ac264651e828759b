#include "runtime/formats/gguf_split.h"

#include <cstdio>
#include <iterator>
#include <utility>

namespace tq {
namespace {

constexpr const char *kNumber = "split.no", *kCount = "split.count",
                     *kTensorCount = "split.tensors.count";
constexpr int64_t kMaxParts = 99999;  // what five digits can name

// An integer of the metadata; `fallback` when it is not there or is none.
int64_t IntOr(const GgufContents& contents, const char* key, int64_t fallback) {
  const auto it = contents.metadata.find(key);
  if (it == contents.metadata.end()) return fallback;
  if (const auto* i = std::get_if<int64_t>(&it->second)) return *i;
  const auto* u = std::get_if<uint64_t>(&it->second);
  return u != nullptr && *u <= INT64_MAX ? static_cast<int64_t>(*u) : fallback;
}

// "-00002-of-00005.gguf"
std::string Suffix(int64_t number, int64_t count) {
  char text[64];
  std::snprintf(text, sizeof text, "-%05lld-of-%05lld.gguf", static_cast<long long>(number + 1),
                static_cast<long long>(count));
  return text;
}

Status AddPart(const std::string& path, int64_t number, int64_t count, GgufContents& whole) {
  Result<MappedFile> mapped = MappedFile::Open(path);
  if (mapped.status().code() == StatusCode::kNotFound) {
    return NotFound("part ", number + 1, " of ", count,
                    " of the split model is missing: ", mapped.status().message());
  }
  TQ_RETURN_IF_ERROR(mapped.status());
  auto map = std::make_shared<MappedFile>(*std::move(mapped));
  TQ_ASSIGN_OR_RETURN(GgufContents part, ReadGguf(map->bytes(), path));
  if (IntOr(part, kNumber, -1) != number || IntOr(part, kCount, -1) != count) {
    return DataLoss("'", path, "' says that it is part ", IntOr(part, kNumber, -1) + 1, " of ",
                    IntOr(part, kCount, -1), "; part ", number + 1, " of ", count,
                    " was expected: the parts do not belong together");
  }
  std::move(part.tensors.begin(), part.tensors.end(), std::back_inserter(whole.tensors));
  whole.file_bytes += part.file_bytes;
  whole.maps.push_back(std::move(map));
  return OkStatus();
}

}  // namespace

Status JoinSplitParts(GgufContents& contents) {
  const int64_t count = IntOr(contents, kCount, 1);
  if (count > 1) {
    const int64_t number = IntOr(contents, kNumber, 0);
    if (count > kMaxParts || number < 0 || number >= count) {
      return DataLoss("'", contents.path, "' says that it is part ", number + 1, " of ", count);
    }
    const std::string own = Suffix(number, count);
    if (!contents.path.ends_with(own)) {
      return InvalidArgument("'", contents.path, "' is part ", number + 1, " of ", count,
                             " of a split model, but its name does not end in '", own,
                             "', which is how the other parts are found; rename it");
    }
    const std::string base = contents.path.substr(0, contents.path.size() - own.size());
    if (number != 0) {
      return InvalidArgument("'", contents.path, "' is part ", number + 1, " of ", count,
                             " of a split model; name its first part, '", base, Suffix(0, count),
                             "'");
    }
    for (int64_t i = 1; i < count; ++i) {
      TQ_RETURN_IF_ERROR(AddPart(base + Suffix(i, count), i, count, contents));
    }
    const auto found = static_cast<int64_t>(contents.tensors.size());
    const int64_t promised = IntOr(contents, kTensorCount, found);
    if (promised != found) {
      return DataLoss("'", contents.path, "' and its ", count - 1, " other parts have ", found,
                      " tensors; ", promised, " were expected");
    }
  }
  for (const char* key : {kNumber, kCount, kTensorCount}) {
    contents.metadata.erase(key);
    std::erase_if(contents.raw_metadata, [&](const GgufRawValue& v) { return v.key == key; });
  }
  return OkStatus();
}

}  // namespace tq
