#include "runtime/evaluate/input_file.h"

#include <zlib.h>
#include <zstd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "turboquant/base/file.h"

namespace tq {
namespace {

constexpr size_t kChunk = size_t{1} << 16;
// zstd frames may ask for a window of gigabytes; 128 MiB is what its own tool unpacks.
constexpr int kMaxWindowLog = 27;

}  // namespace

struct InputFile::State {
  ~State() {
    if (file != nullptr) std::fclose(file);
    if (gzip) inflateEnd(&inflate);
    ZSTD_freeDStream(zstd);
  }

  // Refills `in` when it is empty. False at the end of the file.
  Result<bool> Fill() {
    if (at < size) return true;
    at = 0;
    size = std::fread(in.data(), 1, in.size(), file);
    if (size == 0 && std::ferror(file) != 0) {
      return DataLoss("cannot read '", path, "': ", std::strerror(errno));
    }
    total += static_cast<int64_t>(size);
    return size > 0;
  }

  Status StartUnpacking() {
    static constexpr std::array<unsigned char, 2> kGzip = {0x1f, 0x8b};
    static constexpr std::array<unsigned char, 4> kZstd = {0x28, 0xb5, 0x2f, 0xfd};
    if (size >= kGzip.size() && std::memcmp(in.data(), kGzip.data(), kGzip.size()) == 0) {
      if (inflateInit2(&inflate, 15 + 16) != Z_OK) return ResourceExhausted("no memory for zlib");
      gzip = true;
    } else if (size >= kZstd.size() && std::memcmp(in.data(), kZstd.data(), kZstd.size()) == 0) {
      zstd = ZSTD_createDStream();
      if (zstd == nullptr) return ResourceExhausted("no memory for zstd");
      ZSTD_DCtx_setParameter(zstd, ZSTD_d_windowLogMax, kMaxWindowLog);
    }
    return OkStatus();
  }

  Status Damaged(const char* why) const {
    return DataLoss("'", path, "' is damaged at byte ", total - static_cast<int64_t>(size - at),
                    ": ", why);
  }

  // Some bytes of an archive; 0 at its end.
  Result<size_t> Unpack() {
    for (;;) {
      TQ_ASSIGN_OR_RETURN(const bool more, Fill());
      if (!more && !inside) return size_t{0};
      const size_t before = at;
      size_t got = 0;
      if (gzip) {
        TQ_ASSIGN_OR_RETURN(got, Inflate());
      } else {
        ZSTD_inBuffer source{in.data(), size, at};
        ZSTD_outBuffer target{out.data(), out.size(), 0};
        const size_t left = ZSTD_decompressStream(zstd, &target, &source);
        if (ZSTD_isError(left) != 0) return Damaged(ZSTD_getErrorName(left));
        at = source.pos;
        inside = left != 0;
        got = target.pos;
      }
      if (got > 0) return got;
      if (!more && at == before) return Damaged("it ends early");
    }
  }

  Result<size_t> Inflate() {
    inflate.next_in = reinterpret_cast<Bytef*>(in.data()) + at;
    inflate.avail_in = static_cast<uInt>(size - at);
    inflate.next_out = reinterpret_cast<Bytef*>(out.data());
    inflate.avail_out = static_cast<uInt>(out.size());
    const int rc = ::inflate(&inflate, Z_NO_FLUSH);
    at = size - inflate.avail_in;
    if (rc == Z_STREAM_END) {
      inside = false;
      inflateReset(&inflate);  // a file may hold several members
    } else if (rc == Z_OK) {
      inside = true;
    } else if (rc != Z_BUF_ERROR) {
      return Damaged(inflate.msg != nullptr ? inflate.msg : "it is no gzip");
    }
    return out.size() - inflate.avail_out;
  }

  std::string path;
  std::FILE* file = nullptr;
  std::array<char, kChunk> in, out;
  size_t at = 0, size = 0;  // of `in`
  int64_t total = 0;
  bool started = false, gzip = false;
  bool inside = true;  // a member or frame that has not ended
  z_stream inflate{};
  ZSTD_DStream* zstd = nullptr;
};

InputFile::InputFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
InputFile::InputFile(InputFile&&) noexcept = default;
InputFile::~InputFile() = default;

Result<InputFile> InputFile::Open(const std::string& path) {
  if (IsDirectory(path)) return InvalidArgument("'", path, "' is a folder; a file was expected");
  auto state = std::make_unique<State>();
  state->path = path;
  state->file = std::fopen(path.c_str(), "rbe");
  if (state->file == nullptr) {
    const int error = errno;
    const std::string message = StrCat("cannot open '", path, "': ", std::strerror(error));
    return error == ENOENT || error == ENOTDIR ? NotFound(message) : Unavailable(message);
  }
  return InputFile(std::move(state));
}

Result<std::string_view> InputFile::Read() {
  State& s = *state_;
  if (!s.started) {
    s.started = true;
    TQ_ASSIGN_OR_RETURN(const bool any, s.Fill());
    if (!any) return std::string_view();
    TQ_RETURN_IF_ERROR(s.StartUnpacking());
  }
  if (s.gzip || s.zstd != nullptr) {
    TQ_ASSIGN_OR_RETURN(const size_t got, s.Unpack());
    return std::string_view(s.out.data(), got);
  }
  TQ_ASSIGN_OR_RETURN(const bool more, s.Fill());
  if (!more) return std::string_view();
  const std::string_view bytes(s.in.data() + s.at, s.size - s.at);
  s.at = s.size;
  return bytes;
}

int64_t InputFile::bytes_read() const {
  return state_->total;
}

Result<std::string> ReadInputFile(const std::string& path, size_t max_bytes) {
  TQ_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  std::string out;
  for (;;) {
    TQ_ASSIGN_OR_RETURN(const std::string_view bytes, file.Read());
    if (bytes.empty()) return out;
    if (bytes.size() > max_bytes - out.size()) {
      return ResourceExhausted("'", path, "' unpacks to more than ", max_bytes, " bytes");
    }
    out += bytes;
  }
}

}  // namespace tq
