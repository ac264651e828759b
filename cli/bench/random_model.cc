#include "cli/bench/random_model.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>
#include <vector>

#include "cli/bench/measure.h"
#include "cli/common.h"
#include "runtime/formats/gguf_writer.h"
#include "turboquant/base/numeric.h"
#include "turboquant/codec/record_layout.h"

namespace tq::cli {
namespace {

constexpr int kBlockLen = 32;  // Q4_0: an f16 scale and 32 values of 4 bits
constexpr size_t kBlockBytes = 18;

struct Tensor {
  std::string name;
  int64_t rows = 0, columns = 0;  // rows 0: a vector of `columns` ones
  size_t bytes() const {
    return rows == 0 ? static_cast<size_t>(columns) * sizeof(float)
                     : static_cast<size_t>(rows) * (columns / kBlockLen) * kBlockBytes;
  }
};

std::vector<Tensor> TensorsOf(const RandomModelShape& s) {
  const int64_t q = int64_t{s.q_heads} * s.head_dim, kv = int64_t{s.kv_heads} * s.head_dim;
  std::vector<Tensor> all = {{"token_embd.weight", s.vocab, s.hidden},
                             {"output.weight", s.vocab, s.hidden},
                             {"output_norm.weight", 0, s.hidden}};
  for (int l = 0; l < s.layers; ++l) {
    const std::string blk = "blk." + std::to_string(l) + ".";
    all.insert(all.end(), {{blk + "attn_norm.weight", 0, s.hidden},
                           {blk + "attn_q.weight", q, s.hidden},
                           {blk + "attn_k.weight", kv, s.hidden},
                           {blk + "attn_v.weight", kv, s.hidden},
                           {blk + "attn_output.weight", s.hidden, q},
                           {blk + "ffn_norm.weight", 0, s.hidden},
                           {blk + "ffn_gate.weight", s.ffn, s.hidden},
                           {blk + "ffn_up.weight", s.ffn, s.hidden},
                           {blk + "ffn_down.weight", s.hidden, s.ffn}});
  }
  return all;
}

// Weights of about 1 / sqrt(columns), so that activations stay of one size.
std::string Data(const Tensor& t, uint64_t* state) {
  std::string data(t.bytes(), '\0');
  if (t.rows == 0) {
    const float one = 1;
    for (size_t i = 0; i < data.size(); i += sizeof one) std::memcpy(&data[i], &one, sizeof one);
    return data;
  }
  const f16_t scale = F16FromF32(0.2f / std::sqrt(static_cast<float>(t.columns)));
  for (size_t i = 0; i < data.size(); i += kBlockBytes) {
    const uint64_t codes[] = {SplitMix64(*state), SplitMix64(*state)};
    std::memcpy(&data[i], &scale, sizeof scale);
    std::memcpy(&data[i + sizeof scale], codes, sizeof codes);
  }
  return data;
}

}  // namespace

Result<RandomModelShape> RandomModelShape::Parse(const std::string& text) {
  constexpr char kForm[] = "; --shape is LAYERS,HIDDEN,FFN,Q_HEADS,KV_HEADS,HEAD_DIM,VOCAB";
  const Result<std::vector<int64_t>> n = ParseCounts("--shape", text, 1, 1 << 20);
  if (!n.ok()) return InvalidArgument(n.status().message(), kForm);
  if (n->size() != 7) {
    return InvalidArgument("--shape '", text, "' has ", n->size(), " numbers, not 7", kForm);
  }
  const auto at = [&](size_t i) { return static_cast<int>((*n)[i]); };
  const RandomModelShape s = {at(0), at(1), at(2), at(3), at(4), at(5), at(6)};
  for (const auto& [name, value] :
       {std::pair("HIDDEN", int64_t{s.hidden}), std::pair("FFN", int64_t{s.ffn}),
        std::pair("Q_HEADS x HEAD_DIM", int64_t{s.q_heads} * s.head_dim)}) {
    if (value % kBlockLen != 0) {
      return InvalidArgument("--shape: ", name, " = ", value, " is no multiple of ", kBlockLen,
                             ", a block of Q4_0");
    }
  }
  if (s.q_heads % s.kv_heads != 0) {
    return InvalidArgument("--shape: ", s.q_heads, " query heads are not a multiple of ",
                           s.kv_heads, " KV heads");
  }
  if (s.head_dim > kMaxHeadDim || s.head_dim % 2 != 0) {
    return InvalidArgument("--shape: HEAD_DIM = ", s.head_dim, " is odd or above ", kMaxHeadDim);
  }
  return s;
}

Result<TemporaryFile> TemporaryFile::Create(const std::string& suffix) {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "tq-XXXXXX").string() + suffix;
  if (error) return Unavailable("no folder for temporary files: ", error.message());
  const int fd = ::mkstemps(path.data(), static_cast<int>(suffix.size()));
  if (fd < 0) return Unavailable("cannot make '", path, "': ", std::strerror(errno));
  ::close(fd);
  return TemporaryFile(std::move(path));
}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) std::remove(path_.c_str());
}

Status WriteRandomModel(const RandomModelShape& s, const std::string& path) {
  GgufMetadata header;
  const auto u32 = [&](const char* key, int value) {
    header.U32(key, static_cast<uint32_t>(value));
  };
  header.Text("general.architecture", "llama").Text("general.name", "random weights");
  u32("llama.block_count", s.layers);
  u32("llama.context_length", 131072);
  u32("llama.embedding_length", s.hidden);
  u32("llama.feed_forward_length", s.ffn);
  u32("llama.attention.head_count", s.q_heads);
  u32("llama.attention.head_count_kv", s.kv_heads);
  u32("llama.attention.key_length", s.head_dim);
  u32("llama.attention.value_length", s.head_dim);
  u32("llama.rope.dimension_count", s.head_dim);
  u32("llama.vocab_size", s.vocab);
  header.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  header.F32("llama.rope.freq_base", 500000);
  header.Text("tokenizer.ggml.model", "none");
  const std::vector<Tensor> tensors = TensorsOf(s);
  std::vector<GgufTensorPlan> plan;
  for (const Tensor& t : tensors) {
    plan.push_back({t.name, t.rows == 0 ? GgmlType::kF32 : GgmlType::kQ4_0, {t.columns}});
    if (t.rows > 0) plan.back().shape.push_back(t.rows);
  }
  const auto advise = [](const Status& status) -> Status {
    if (status.code() != StatusCode::kResourceExhausted) return status;
    return ResourceExhausted(status.message(),
                             "; set TMPDIR to a folder with more room, or use fewer layers");
  };
  Result<GgufWriter> writer = GgufWriter::Create(path, header, std::move(plan));
  TQ_RETURN_IF_ERROR(advise(writer.status()));
  uint64_t state = 1;
  for (const Tensor& t : tensors) {
    if (InterruptFlag().load()) return Cancelled("the measurement was stopped");
    const std::string data = Data(t, &state);
    TQ_RETURN_IF_ERROR(advise(writer->Write(std::as_bytes(std::span(data)))));
  }
  return advise(writer->Commit());
}

}  // namespace tq::cli
