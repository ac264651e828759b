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

// Closes on scope exit.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

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

Result<AtomicFile> AtomicFile::Create(const std::string& asked) {
  AtomicFile file;
  // A link (a shared file, /dev/stdout) stays; what it points to is replaced.
  file.path_ = asked;
  if (char* target = ::realpath(asked.c_str(), nullptr)) {
    file.path_ = target;
    std::free(target);
  }
  // A device or a pipe is written to directly: renaming over it would replace it by a file.
  struct stat st {};
  file.special_ = ::stat(file.path_.c_str(), &st) == 0 && !S_ISREG(st.st_mode);
  file.temporary_ = file.special_ ? file.path_ : StrCat(file.path_, ".tmp", ::getpid());
  const int create = file.special_ ? 0 : O_CREAT | O_TRUNC;
  file.fd_ = ::open(file.temporary_.c_str(), O_WRONLY | create | O_CLOEXEC, 0644);
  if (file.fd_ < 0) return FromErrno("cannot create", file.path_, errno);
  return file;
}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(special_, other.special_);
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!special_) ::unlink(temporary_.c_str());
}

Status AtomicFile::Reserve(uint64_t bytes) {
  if (special_ || bytes == 0) return OkStatus();
  int error = 0;
  do {
    error = ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return FromErrno(StrCat("no room for the ", bytes, " bytes of"), path_, error);
  }
  return OkStatus();  // others: this file system reserves nothing
}

Status AtomicFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return FromErrno("cannot write", path_, errno);
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return OkStatus();
}

Status AtomicFile::Commit() {
  // A pipe or a terminal cannot be synced; that is no error.
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) {
    return FromErrno("cannot write", path_, errno);
  }
  // A full disk may show only now.
  const int closed = ::close(std::exchange(fd_, -1));
  if (closed == 0 && (special_ || ::rename(temporary_.c_str(), path_.c_str()) == 0)) {
    return OkStatus();
  }
  const int error = errno;
  if (!special_) ::unlink(temporary_.c_str());
  return FromErrno("cannot write", path_, error);
}

Status WriteFileAtomic(const std::string& path, std::string_view contents) {
  TQ_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  TQ_RETURN_IF_ERROR(file.Write(contents));
  return file.Commit();
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
