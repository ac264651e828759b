#include "turboquant/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace tq {
namespace {

Status FromErrno(const std::string& action, const std::string& path, int error) {
  const std::string message = StrCat(action, " '", path, "': ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR: return NotFound(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return ResourceExhausted(message, "; free some space or choose another folder");
    case EACCES:
    case EPERM:
    case EROFS: return Unavailable(message, "; check the rights of the file and its folder");
    case EISDIR: return InvalidArgument(message, "; a file was expected");
    default: return Unavailable(message);
  }
}

// Closes on scope exit; Close() reports the error that a full disk may show only then.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int Close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd);
  }

 private:
  int fd_;
};

}  // namespace

Result<std::string> ReadFile(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return FromErrno("cannot open", path, errno);
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return FromErrno("cannot stat", path, errno);
  if (S_ISDIR(st.st_mode)) return FromErrno("cannot read", path, EISDIR);
  std::string out;
  out.reserve(static_cast<size_t>(st.st_size));
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n == 0) return out;
    if (n < 0) {
      if (errno == EINTR) continue;
      return FromErrno("cannot read", path, errno);
    }
    out.append(buffer, static_cast<size_t>(n));
  }
}

Status WriteFileAtomic(const std::string& asked, std::string_view contents) {
  // A link (a shared file, /dev/stdout) stays; what it points to is replaced.
  std::string path = asked;
  if (char* target = ::realpath(asked.c_str(), nullptr)) {
    path = target;
    std::free(target);
  }
  // A device or a pipe is written to directly: renaming over it would replace it by a file.
  struct stat st {};
  const bool special = ::stat(path.c_str(), &st) == 0 && !S_ISREG(st.st_mode);
  const std::string temporary = special ? path : StrCat(path, ".tmp", ::getpid());
  const int create = special ? 0 : O_CREAT | O_TRUNC;
  Fd fd(::open(temporary.c_str(), O_WRONLY | create | O_CLOEXEC, 0644));
  if (fd.get() < 0) return FromErrno("cannot create", path, errno);
  const auto fail = [&](int error) {
    if (!special) ::unlink(temporary.c_str());
    return FromErrno("cannot write", path, error);
  };
  while (!contents.empty()) {
    const ssize_t n = ::write(fd.get(), contents.data(), contents.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return fail(errno);
    }
    contents.remove_prefix(static_cast<size_t>(n));
  }
  // A pipe or a terminal cannot be synced; that is no error.
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != EROFS) return fail(errno);
  if (fd.Close() != 0) return fail(errno);
  if (!special && ::rename(temporary.c_str(), path.c_str()) != 0) return fail(errno);
  return OkStatus();
}

Status MakeDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0 || (errno == EEXIST && IsDirectory(path))) return OkStatus();
  return FromErrno("cannot make the folder", path, errno);
}

bool FileExists(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0;
}

bool IsDirectory(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

}  // namespace tq
