// Status, numbers, files, maps, instruction sets, dispatch and buffers.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "turboquant/base/aligned.h"
#include "turboquant/base/dispatch.h"
#include "turboquant/base/file.h"
#include "turboquant/base/isa.h"
#include "turboquant/base/mapped_file.h"
#include "turboquant/base/numeric.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"

namespace tq {
namespace {

namespace fs = std::filesystem;

// --- status ---

TEST(Status, CarriesCodeMessageAndContext) {
  EXPECT_TRUE(OkStatus().ok());
  EXPECT_EQ(OkStatus().ToString(), "ok");
  EXPECT_TRUE(OkStatus().WithContext("opening").ok());
  const Status status = InvalidArgument("head_dim ", 7, " is odd");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.ToString(), "invalid argument: head_dim 7 is odd");
  EXPECT_EQ(status.WithContext("layer 3").message(), "layer 3: head_dim 7 is odd");
  EXPECT_EQ(status.WithContext("layer 3").code(), StatusCode::kInvalidArgument);
}

TEST(Status, EveryCodeHasAMakerAndAName) {
  EXPECT_EQ(NotFound("x").ToString(), "not found: x");
  EXPECT_EQ(FailedPrecondition("x").ToString(), "failed precondition: x");
  EXPECT_EQ(DataLoss("x").ToString(), "damaged data: x");
  EXPECT_EQ(ResourceExhausted("x").ToString(), "resource exhausted: x");
  EXPECT_EQ(Unsupported("x").ToString(), "unsupported: x");
  EXPECT_EQ(Unavailable("x").ToString(), "unavailable: x");
  EXPECT_EQ(Cancelled("x").ToString(), "cancelled: x");
  EXPECT_STREQ(StatusCodeName(StatusCode::kOk), "ok");
}

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument(n, " is odd");
  return n / 2;
}
Result<int> Quarter(int n) {
  TQ_ASSIGN_OR_RETURN(const int half, Half(n));
  TQ_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}
Status CheckQuarter(int n) {
  TQ_RETURN_IF_ERROR(Quarter(n).status());
  return OkStatus();
}

TEST(Result, HoldsAValueOrAStatus) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_TRUE(Quarter(12).status().ok());
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
  EXPECT_EQ(CheckQuarter(6).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(CheckQuarter(8).ok());
  Result<std::unique_ptr<int>> owner = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = *std::move(owner);
  EXPECT_EQ(*taken, 5);
}

TEST(StatusDeathTest, ChecksAbortWithTheExpression) {
  TQ_CHECK(1 + 1 == 2);
  EXPECT_DEATH(TQ_CHECK(1 + 1 == 3), "internal check failed: 1 \\+ 1 == 3");
}

// --- numeric ---

// Reference by arithmetic on the definition of the format.
float HalfByDefinition(uint32_t h) {
  const float sign = (h & 0x8000u) ? -1.0f : 1.0f;
  const int exponent = static_cast<int>((h >> 10) & 31u);
  const int mantissa = static_cast<int>(h & 1023u);
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

TEST(Numeric, EveryHalfIsExactAndComesBack) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float got = F32FromF16(static_cast<f16_t>(h));
    const float want = HalfByDefinition(h);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << h;
      EXPECT_TRUE(std::isnan(F32FromF16(F16FromF32(got)))) << h;
      continue;
    }
    ASSERT_EQ(got, want) << h;
    ASSERT_EQ(std::signbit(got), std::signbit(want)) << h;
    ASSERT_EQ(F16FromF32(got), h);
  }
}

TEST(Numeric, HalfRoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t h = 0; h < 0x7BFFu; ++h) {
    const float low = F32FromF16(static_cast<f16_t>(h));
    const float high = F32FromF16(static_cast<f16_t>(h + 1));
    const float middle = low + (high - low) / 2;  // exact: one more bit than a half has
    const uint32_t even = h % 2 == 0 ? h : h + 1;
    ASSERT_EQ(F16FromF32(middle), even) << h;
    ASSERT_EQ(F16FromF32(std::nextafter(middle, 0.0f)), h) << h;
    ASSERT_EQ(F16FromF32(std::nextafter(middle, INFINITY)), h + 1) << h;
    ASSERT_EQ(F16FromF32(-middle), even | 0x8000u) << h;
  }
}

TEST(Numeric, HalfOverflowsToInfinityAndUnderflowsToZero) {
  EXPECT_EQ(F16FromF32(65504.0f), 0x7BFF);
  EXPECT_EQ(F16FromF32(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(F16FromF32(65520.0f), 0x7C00);
  EXPECT_EQ(F16FromF32(-1e30f), 0xFC00);
  EXPECT_EQ(F16FromF32(INFINITY), 0x7C00);
  EXPECT_EQ(F16FromF32(0x1p-25f), 0);
  EXPECT_EQ(F16FromF32(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(F16FromF32(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(F16FromF32(-0.0f), 0x8000);
}

TEST(Numeric, EveryBfloatComesBack) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const float f = F32FromBF16(static_cast<bf16_t>(b));
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(F32FromBF16(BF16FromF32(f)))) << b;
    } else {
      ASSERT_EQ(BF16FromF32(f), b);
    }
  }
  // A NaN whose payload is only in the dropped bits must not become infinity.
  EXPECT_TRUE(std::isnan(F32FromBF16(BF16FromF32(std::bit_cast<float>(0x7F800001u)))));
}

TEST(Numeric, BfloatRounds) {
  const float one = 1.0f, next = 1.0f + 0x1p-7f;
  EXPECT_EQ(BF16FromF32(one + 0x1p-8f), BF16FromF32(one));        // tie to even
  EXPECT_EQ(BF16FromF32(next + 0x1p-8f), BF16FromF32(next) + 1);  // tie to even
  EXPECT_EQ(BF16FromF32(one + 0x1p-8f + 0x1p-20f), BF16FromF32(next));
  EXPECT_EQ(BF16FromF32(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(Numeric, BfloatRoundsUp) {
  uint64_t state = 1;
  for (int i = 0; i < 100000; ++i) {
    const float f = std::bit_cast<float>(static_cast<uint32_t>(SplitMix64(state) >> 33));
    if (!std::isfinite(f)) continue;
    const bf16_t up = BF16FromF32RoundUp(f);
    ASSERT_GE(F32FromBF16(up), f);
    if (f > 0) {
      ASSERT_LT(F32FromBF16(static_cast<bf16_t>(up - 1)), f);
    }
  }
  EXPECT_EQ(BF16FromF32RoundUp(0.0f), 0);
  EXPECT_EQ(F32FromBF16(BF16FromF32RoundUp(1.5f)), 1.5f);
}

TEST(Numeric, SplitMixMatchesThePublishedSequence) {
  uint64_t state = 0;
  EXPECT_EQ(SplitMix64(state), 0xE220A8397B1DCDAFull);
  EXPECT_EQ(SplitMix64(state), 0x6E789E6AA1B965F4ull);
  EXPECT_EQ(SplitMix64(state), 0x06C45D188009454Full);
}

TEST(Numeric, RoundsUpAndDivides) {
  EXPECT_EQ(RoundUp(0, 8), 0);
  EXPECT_EQ(RoundUp(1, 8), 8);
  EXPECT_EQ(RoundUp<size_t>(16, 8), 16u);
  EXPECT_EQ(DivCeil(9, 8), 2);
  EXPECT_EQ(DivCeil(8, 8), 1);
}

TEST(Numeric, HashIsXxh3) {
  EXPECT_EQ(Hash64("", 0), 0x2D06800538D394C2ull);  // the published value of no bytes
  EXPECT_NE(Hash64("a", 1), Hash64("b", 1));
  EXPECT_NE(Hash64("a", 1), Hash64("a", 1, 1));
}

// --- files ---

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "tq_base_test_" + std::to_string(::getpid()) + "_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  size_t NumFiles() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  std::string folder_;
};

TEST_F(FileTest, WritesAndReadsBack) {
  const std::string contents = std::string("a\0b\n", 4) + std::string(200000, 'x');
  ASSERT_TRUE(WriteFileAtomic(Path("f"), contents).ok());
  EXPECT_EQ(*ReadFile(Path("f")), contents);
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "").ok());
  EXPECT_EQ(*ReadFile(Path("f")), "");
  EXPECT_EQ(NumFiles(), 1u);
  EXPECT_TRUE(FileExists(Path("f")));
  EXPECT_FALSE(IsDirectory(Path("f")));
  EXPECT_TRUE(IsDirectory(folder_));
  EXPECT_FALSE(FileExists(Path("g")));
}

TEST_F(FileTest, NamesWhatCannotBeRead) {
  const Status missing = ReadFile(Path("none")).status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), "cannot open '" + Path("none") + "': No such file or directory");
  const Status folder = ReadFile(folder_).status();
  EXPECT_FALSE(folder.ok());
  EXPECT_NE(folder.message().find("Is a directory"), std::string::npos) << folder.message();
}

TEST_F(FileTest, NamesWhatCannotBeWritten) {
  const Status missing = WriteFileAtomic(Path("none/f"), "x");
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  fs::create_directories(Path("taken/inner"));
  const Status folder = WriteFileAtomic(Path("taken"), "x");
  EXPECT_FALSE(folder.ok());
  EXPECT_EQ(folder.message(),
            "cannot create '" + Path("taken") + "': Is a directory; a file was expected");
  EXPECT_EQ(NumFiles(), 1u) << "the temporary file is gone";
}

TEST_F(FileTest, FullDiskLeavesTheOldFile) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "old").ok());
  // The temporary name leads to a device on which every write finds the disk full.
  const std::string temporary = Path("f") + ".tmp" + std::to_string(::getpid());
  ASSERT_EQ(::symlink("/dev/full", temporary.c_str()), 0);
  const Status status = WriteFileAtomic(Path("f"), "new");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "cannot write '" + Path("f") +
                                  "': No space left on device; free some space or choose another "
                                  "folder");
  EXPECT_EQ(*ReadFile(Path("f")), "old");
  EXPECT_EQ(NumFiles(), 1u);
}

TEST_F(FileTest, PiecesBecomeAFileOnlyWithCommit) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "old").ok());
  {
    Result<AtomicFile> file = AtomicFile::Create(Path("f"));
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    ASSERT_TRUE(file->Write("new").ok());
    EXPECT_EQ(*ReadFile(Path("f")), "old");
  }
  EXPECT_EQ(*ReadFile(Path("f")), "old");
  EXPECT_EQ(NumFiles(), 1u);
  Result<AtomicFile> file = AtomicFile::Create(Path("f"));
  ASSERT_TRUE(file.ok());
  AtomicFile moved = std::move(*file);
  for (const char* piece : {"ne", "", "w"}) ASSERT_TRUE(moved.Write(piece).ok());
  ASSERT_TRUE(moved.Commit().ok());
  EXPECT_EQ(*ReadFile(Path("f")), "new");
  EXPECT_EQ(NumFiles(), 1u);
}

TEST_F(FileTest, LinksStayAndTheirTargetsAreReplaced) {
  ASSERT_TRUE(WriteFileAtomic(Path("target"), "old").ok());
  ASSERT_EQ(::symlink(Path("target").c_str(), Path("link").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomic(Path("link"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(*ReadFile(Path("target")), "new");
}

TEST_F(FileTest, DevicesAreWrittenInPlace) {
  EXPECT_TRUE(WriteFileAtomic("/dev/null", "gone").ok());
  EXPECT_EQ(WriteFileAtomic("/dev/full", "x").code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(fs::is_regular_file("/dev/null"));
  EXPECT_FALSE(fs::is_regular_file("/dev/full"));
}

TEST_F(FileTest, FileSizeLimitLeavesTheOldFile) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "old").ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 4096;
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status status = WriteFileAtomic(Path("f"), std::string(100000, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_EQ(*ReadFile(Path("f")), "old");
  EXPECT_EQ(NumFiles(), 1u);
}

TEST_F(FileTest, NoRights) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read and write everything";
  ASSERT_TRUE(WriteFileAtomic(Path("f"), "x").ok());
  ASSERT_EQ(::chmod(Path("f").c_str(), 0), 0);
  EXPECT_EQ(ReadFile(Path("f")).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(MappedFile::Open(Path("f")).status().code(), StatusCode::kUnavailable);
  ASSERT_EQ(::chmod(folder_.c_str(), 0500), 0);
  const Status status = WriteFileAtomic(Path("g"), "x");
  ::chmod(folder_.c_str(), 0700);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("check the rights"), std::string::npos);
}

// --- mapped files ---

TEST_F(FileTest, MapsAWholeFile) {
  const std::string contents(70000, 'm');
  ASSERT_TRUE(WriteFileAtomic(Path("m"), contents).ok());
  Result<MappedFile> map = MappedFile::Open(Path("m"));
  ASSERT_TRUE(map.ok()) << map.status().ToString();
  MappedFile moved = *std::move(map);
  EXPECT_EQ(moved.path(), Path("m"));
  ASSERT_EQ(moved.bytes().size(), contents.size());
  EXPECT_EQ(std::memcmp(moved.bytes().data(), contents.data(), contents.size()), 0);
  moved.Release(moved.bytes());
  moved.Release(moved.bytes().subspan(10, 20));
  moved.Release(moved.bytes().subspan(70000, 0));
  EXPECT_EQ(std::memcmp(moved.bytes().data(), contents.data(), contents.size()), 0);
  Result<MappedFile> other = MappedFile::Open(Path("m"));
  ASSERT_TRUE(other.ok());
  moved = *std::move(other);
  EXPECT_EQ(moved.bytes().size(), contents.size());
}

TEST_F(FileTest, MapsAnEmptyFile) {
  ASSERT_TRUE(WriteFileAtomic(Path("m"), "").ok());
  const Result<MappedFile> map = MappedFile::Open(Path("m"));
  ASSERT_TRUE(map.ok());
  EXPECT_TRUE(map->bytes().empty());
  map->Release(map->bytes());
}

TEST_F(FileTest, MapsNothingElse) {
  EXPECT_EQ(MappedFile::Open(Path("none")).status().code(), StatusCode::kNotFound);
  const Status folder = MappedFile::Open(folder_).status();
  EXPECT_EQ(folder.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(folder.message(), "cannot open '" + folder_ + "': it is not a regular file");
}

// --- instruction sets ---

TEST(Isa, ForcesEachAvailableSet) {
  const std::vector<std::string> names = AvailableIsas();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "ref");
  const std::string usual = CurrentIsa();
  EXPECT_EQ(usual, names.front());
  for (const std::string& name : names) {
    ASSERT_TRUE(ForceIsa(name).ok()) << name;
    EXPECT_EQ(CurrentIsa(), name);
    EXPECT_EQ(UseReferenceKernels(), name == "ref");
  }
  ResetIsa();
  EXPECT_EQ(CurrentIsa(), usual);
  EXPECT_FALSE(UseReferenceKernels());
}

TEST(Isa, NamesWhatIsAvailable) {
  const Status status = ForceIsa("mmx");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("instruction set 'mmx' is not available here; available: "),
            std::string::npos);
  EXPECT_NE(status.message().find("ref"), std::string::npos);
  EXPECT_FALSE(UseReferenceKernels());
}

TEST(Isa, ObeysTheEnvironment) {
  ::setenv("TQ_ISA", "ref", 1);
  EXPECT_TRUE(ApplyIsaFromEnvironment().ok());
  EXPECT_TRUE(UseReferenceKernels());
  ::setenv("TQ_ISA", "nonsense", 1);
  const Status status = ApplyIsaFromEnvironment();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().rfind("TQ_ISA: ", 0), 0u) << status.message();
  ::setenv("TQ_ISA", "", 1);
  EXPECT_TRUE(ApplyIsaFromEnvironment().ok());
  ::unsetenv("TQ_ISA");
  ResetIsa();
}

// --- dispatch, buffers, sinks ---

TEST(Dispatch, CallsTheInstanceOrListsWhatThereIs) {
  int got = 0;
  const auto set = [&]<int kN>() { got = kN; };
  EXPECT_TRUE((DispatchInt<64, 128, 256>(128, "head_dim", set).ok()));
  EXPECT_EQ(got, 128);
  const Status status = DispatchInt<64, 128, 256>(80, "head_dim", set);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "head_dim = 80 has no kernel; supported: 64, 128, 256");
  EXPECT_EQ(got, 128);
}

TEST(AlignedBuffer, IsAlignedAndZero) {
  for (const size_t n : {0, 1, 15, 16, 17, 1000}) {
    AlignedBuffer<float> buffer(n);
    EXPECT_EQ(buffer.size(), n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kCacheLine, 0u);
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(buffer[i], 0.0f);
    if (n > 0) buffer[n - 1] = 1;
    buffer.Resize(n);
    for (const float f : buffer.span()) EXPECT_EQ(f, 0.0f);
  }
}

TEST(AlignedBuffer, ReserveOnlyGrows) {
  AlignedBuffer<int> buffer(8);
  buffer[3] = 5;
  buffer.Reserve(4);
  EXPECT_EQ(buffer.size(), 8u);
  EXPECT_EQ(buffer[3], 5);
  buffer.Reserve(9);
  EXPECT_EQ(buffer.size(), 9u);
  EXPECT_EQ(buffer[3], 0);
}

TEST(Sinks, EmptyOnesDropAndGoOn) {
  Log({}, LogLevel::kInfo, "dropped");
  EXPECT_TRUE(ReportProgress({}, 1, 2, "work"));
  std::string seen;
  Log([&](LogLevel, const std::string& message) { seen = message; }, LogLevel::kWarning, "heard");
  EXPECT_EQ(seen, "heard");
  EXPECT_FALSE(ReportProgress([](size_t, size_t, const std::string&) { return false; }, 1, 2, "w"));
}

}  // namespace
}  // namespace tq
