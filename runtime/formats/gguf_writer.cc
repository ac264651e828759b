#include "runtime/formats/gguf_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "runtime/formats/gguf_bytes.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

constexpr uint32_t kDefaultAlignment = 32;
constexpr const char* kAlignmentKey = "general.alignment";
constexpr size_t kMaxNameBytes = 65535;
constexpr size_t kMaxDims = 4;
constexpr size_t kCopyBytes = size_t{4} << 20;  // between two reports of progress

Status CheckName(const char* what, const std::string& name) {
  if (!name.empty() && name.size() <= kMaxNameBytes) return OkStatus();
  return InvalidArgument(what, " of ", name.size(), " bytes: 1 to ", kMaxNameBytes,
                         " can be written");
}

Result<uint64_t> AlignmentOf(const GgufMetadata& metadata) {
  const GgufMetadata::Entry* entry = metadata.Find(kAlignmentKey);
  if (entry == nullptr) return uint64_t{kDefaultAlignment};
  uint32_t alignment = 0;
  if (entry->type == GgufType::kU32 && entry->bytes.size() == sizeof alignment) {
    std::memcpy(&alignment, entry->bytes.data(), sizeof alignment);
  }
  if (alignment < 8 || !std::has_single_bit(alignment)) {
    return InvalidArgument("'", kAlignmentKey, "' is no u32 that is a power of two of at least 8");
  }
  return uint64_t{alignment};
}

Status CheckTensor(const GgufTensorPlan& t) {
  TQ_RETURN_IF_ERROR(CheckName("a tensor's name", t.name));
  const GgmlTypeShape block = GgmlShape(t.type);
  if (block.block_len == 0) {
    return InvalidArgument("tensor '", t.name, "': the layout of ", GgmlTypeName(t.type),
                           " is not known");
  }
  if (t.shape.empty() || t.shape.size() > kMaxDims) {
    return InvalidArgument("tensor '", t.name, "' has ", t.shape.size(), " dimensions; 1 to ",
                           kMaxDims, " can be written");
  }
  for (const int64_t dim : t.shape) {
    if (dim <= 0) return InvalidArgument("tensor '", t.name, "' has a dimension of ", dim);
  }
  if (t.shape[0] % block.block_len != 0) {
    return InvalidArgument("tensor '", t.name, "': rows of ", t.shape[0],
                           " values are no multiple of the ", block.block_len, " values of a ",
                           GgmlTypeName(t.type), " block");
  }
  return OkStatus();
}

}  // namespace

std::string GgufHeaderBytes(const GgufMetadata& metadata, std::span<const GgufTensorEntry> tensors,
                            uint64_t alignment, uint32_t version) {
  std::string out = "GGUF";
  Put(out, version);
  Put(out, static_cast<uint64_t>(tensors.size()));
  Put(out, static_cast<uint64_t>(metadata.entries().size()));
  for (const GgufMetadata::Entry& entry : metadata.entries()) {
    PutText(out, entry.key);
    Put(out, static_cast<uint32_t>(entry.type));
    out += entry.bytes;
  }
  for (const GgufTensorEntry& tensor : tensors) {
    PutText(out, tensor.name);
    Put(out, static_cast<uint32_t>(tensor.shape.size()));
    for (const uint64_t dim : tensor.shape) Put(out, dim);
    Put(out, tensor.type);
    Put(out, tensor.offset);
  }
  if (!tensors.empty()) out.resize(RoundUp<size_t>(out.size(), alignment), '\0');
  return out;
}

Result<GgufWriter> GgufWriter::Create(const std::string& path, const GgufMetadata& metadata,
                                      std::vector<GgufTensorPlan> tensors) {
  const std::string context = StrCat("cannot write '", path, "'");
  for (const GgufMetadata::Entry& entry : metadata.entries()) {
    TQ_RETURN_IF_ERROR(CheckName("a metadata key", entry.key).WithContext(context));
  }
  const auto alignment = AlignmentOf(metadata);
  TQ_RETURN_IF_ERROR(alignment.status().WithContext(context));
  std::set<std::string> names;
  std::vector<GgufTensorEntry> entries;
  std::vector<uint64_t> sizes;
  uint64_t end = 0;
  for (const GgufTensorPlan& t : tensors) {
    TQ_RETURN_IF_ERROR(CheckTensor(t).WithContext(context));
    if (!names.insert(t.name).second) {
      return InvalidArgument(context, ": tensor '", t.name, "' is there twice");
    }
    const uint64_t offset = RoundUp<uint64_t>(end, *alignment);
    entries.push_back(
        {t.name, static_cast<uint32_t>(t.type), {t.shape.begin(), t.shape.end()}, offset});
    GgufTensor sized;
    sized.type = t.type;
    sized.shape = t.shape;
    sizes.push_back(sized.num_bytes());
    end = offset + sizes.back();
  }
  const std::string header = GgufHeaderBytes(metadata, entries, *alignment);
  TQ_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  GgufWriter writer(std::move(file));
  writer.alignment_ = *alignment;
  writer.file_bytes_ = header.size() + RoundUp<uint64_t>(end, *alignment);
  writer.sizes_ = std::move(sizes);
  for (GgufTensorPlan& t : tensors) writer.names_.push_back(std::move(t.name));
  TQ_RETURN_IF_ERROR(writer.file_.Reserve(writer.file_bytes_));
  TQ_RETURN_IF_ERROR(writer.file_.Write(header));
  return writer;
}

Status GgufWriter::FinishTensor() {
  const uint64_t size = sizes_[tensor_];
  if (written_ < size) return OkStatus();
  const std::string padding(RoundUp<uint64_t>(size, alignment_) - size, '\0');
  ++tensor_;
  written_ = 0;
  return file_.Write(padding);
}

Status GgufWriter::Write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return OkStatus();
  if (tensor_ == sizes_.size()) {
    return InvalidArgument(bytes.size(), " bytes behind the last of ", sizes_.size(), " tensors");
  }
  if (bytes.size() > sizes_[tensor_] - written_) {
    return InvalidArgument("tensor '", names_[tensor_], "' has ", sizes_[tensor_], " bytes; after ",
                           written_, " of them came ", bytes.size());
  }
  TQ_RETURN_IF_ERROR(file_.Write({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  written_ += bytes.size();
  return FinishTensor();
}

Status GgufWriter::Commit() {
  if (tensor_ < sizes_.size()) {
    return FailedPrecondition("tensor '", names_[tensor_], "' was not written: ", written_, " of ",
                              sizes_[tensor_], " bytes");
  }
  return file_.Commit();
}

Status CopyGguf(const GgufFile& file, const GgufMetadata& metadata, const std::string& path,
                const ProgressSink& progress) {
  std::vector<GgufTensorPlan> plan;
  size_t total = 0, done = 0;
  for (const GgufTensor& t : file.tensors()) {
    plan.push_back({t.name, t.type, t.shape});
    total += t.num_bytes();
  }
  TQ_ASSIGN_OR_RETURN(GgufWriter writer, GgufWriter::Create(path, metadata, std::move(plan)));
  for (const GgufTensor& t : file.tensors()) {
    const TensorData data = file.Data(t);
    for (std::span<const std::byte> rest = data.bytes(); !rest.empty();) {
      const size_t n = std::min(rest.size(), kCopyBytes);
      TQ_RETURN_IF_ERROR(writer.Write(rest.first(n)));
      rest = rest.subspan(n);
      done += n;
      if (!ReportProgress(progress, done, total, "writing " + t.name)) {
        return Cancelled("writing '", path, "' was cancelled; nothing of it remains");
      }
    }
    file.Release(t);
  }
  return writer.Commit();
}

}  // namespace tq
