// Files written and read back byte for byte, metadata changed on the way, and disks that are full.
#include "runtime/formats/gguf_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>

#include "runtime/formats/gguf_builder_for_test.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

namespace fs = std::filesystem;

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

class GgufWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  size_t NumFiles() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {}));
  }
  fs::path folder_;
};

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Every metadata type, names in no order, tensors of odd sizes.
GgufBuilder SmallFile(uint32_t alignment = 0) {
  GgufBuilder b;
  if (alignment > 0) b.Alignment(alignment);
  b.Text("general.architecture", "llama").U32("z", 4000000000u).I32("i32", -5).F32("f32", 0.5f);
  b.Bool("yes", true).Texts("words", {"a", "", "b\xff\0c"}).I32s("ints", {1, -2});
  b.Raw("u8", 0, "\xff").Raw("i8", 1, "\xff").Raw("u16", 2, "\xff\xff").Raw("i16", 3, "\xff\xff");
  b.Raw("u64", 10, Bytes(~0ull)).Raw("i64", 11, Bytes(~0ull)).Raw("f64", 12, Bytes(0.1));
  b.F32s("floats", {0.1f, -0.f}).Raw("bools", 9, Bytes(7u) + Bytes(2ull) + std::string("\1\0", 2));
  b.Tensor("b", GgmlType::kF32, {3}, std::string(12, 'a'));
  b.Tensor("a", GgmlType::kQ4_0, {64, 2}, std::string(72, 'b'));
  b.Tensor("c", GgmlType::kF16, {1, 1, 2, 1}, "cccc");
  return b;
}

TEST_F(GgufWriterTest, CopiesAFileByteForByte) {
  std::string whole = SmallFile().Build();
  whole.resize(RoundUp<size_t>(whole.size(), 32), '\0');
  ASSERT_TRUE(WriteFileAtomic(Path("from"), whole).ok());
  const auto file = GgufFile::Open(Path("from"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  size_t reports = 0;
  const Status status = CopyGguf(*file, GgufMetadata::Of(*file), Path("to"),
                                 [&](size_t done, size_t total, const std::string& what) {
                                   ++reports;
                                   EXPECT_EQ(total, 88u);
                                   EXPECT_LE(done, total);
                                   EXPECT_TRUE(what.starts_with("writing ")) << what;
                                   return true;
                                 });
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(*ReadFile(Path("to")), whole);
  EXPECT_EQ(reports, 3u);
}

TEST_F(GgufWriterTest, ChangesMetadataOfAFileInItsPlace) {
  ASSERT_TRUE(WriteFileAtomic(Path("f"), SmallFile(64).Build()).ok());
  const auto before = GgufFile::Open(Path("f"));
  ASSERT_TRUE(before.ok()) << before.status().ToString();
  GgufMetadata metadata = GgufMetadata::Of(*before);
  const std::string nested = Bytes(9u) + Bytes(1ull) + Bytes(4u) + Bytes(1ull) + Bytes(7u);
  EXPECT_FALSE(metadata.Remove("no such key"));
  EXPECT_TRUE(metadata.Remove("f64"));
  metadata.Text("z", "now a text").U64("new", 1ull << 40).U8s("raw", std::vector<uint8_t>{1, 2});
  EXPECT_EQ(metadata.entries()[2].key, "z") << "a key that is replaced stays in its place";
  ASSERT_TRUE(CopyGguf(*before, metadata, Path("f")).ok());
  const auto after = GgufFile::Open(Path("f"));
  ASSERT_TRUE(after.ok()) << after.status().ToString();
  EXPECT_EQ(*after->GetString("z"), "now a text");
  EXPECT_EQ(*after->GetInt("new"), int64_t{1} << 40);
  EXPECT_EQ(*after->GetInts("raw"), (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(after->Has("f64"));
  EXPECT_EQ(*after->GetStrings("words"), *before->GetStrings("words"));
  ASSERT_EQ(after->tensors().size(), 3u);
  for (const GgufTensor& t : before->tensors()) {
    EXPECT_EQ(Text(after->FindTensor(t.name)->data), Text(t.data)) << t.name;
  }
  EXPECT_EQ(after->FindTensor("a")->data.data() - after->FindTensor("b")->data.data(), 64)
      << "tensors start at the file's alignment";
  // Arrays of arrays can be written, and are refused by name when read.
  metadata.Raw("nested", GgufType::kArray, nested);
  ASSERT_TRUE(CopyGguf(*after, metadata, Path("g")).ok());
  EXPECT_EQ(GgufFile::Open(Path("g")).status().code(), StatusCode::kUnsupported);
}

// A folder has values without a width: they get the types that readers of GGUF expect.
TEST_F(GgufWriterTest, ValuesOfAFolderGetTheTypesOfTheConverter) {
  GgufContents contents;
  contents.metadata = {{"a", uint64_t{7}},
                       {"general.architecture", std::string("gemma3")},
                       {"wide", uint64_t{1} << 40},
                       {"f", 0.5},
                       {"b", true},
                       {"scores", std::vector<double>{0.25}},
                       {"tokenizer.ggml.token_type", std::vector<int64_t>{1, 6}},
                       {"gemma3.attention.sliding_window_pattern", std::vector<int64_t>{1, 0}},
                       {"tokenizer.ggml.precompiled_charsmap", std::vector<int64_t>{255}},
                       {"texts", std::vector<std::string>{"x"}}};
  const auto file = GgufFile::FromContents(std::move(contents));
  ASSERT_TRUE(file.ok());
  const GgufMetadata m = GgufMetadata::Of(*file);
  ASSERT_EQ(m.entries().size(), 10u);
  EXPECT_EQ(m.entries()[0].key, "general.architecture");
  EXPECT_EQ(m.Find("a")->type, GgufType::kU32);
  EXPECT_EQ(m.Find("wide")->type, GgufType::kU64);
  EXPECT_EQ(m.Find("f")->bytes, Bytes(0.5f));
  EXPECT_EQ(m.Find("b")->bytes, std::string(1, '\1'));
  EXPECT_EQ(m.Find("scores")->bytes, Bytes(6u) + Bytes(1ull) + Bytes(0.25f));
  EXPECT_EQ(m.Find("tokenizer.ggml.token_type")->bytes,
            Bytes(5u) + Bytes(2ull) + Bytes(1) + Bytes(6));
  EXPECT_EQ(m.Find("gemma3.attention.sliding_window_pattern")->bytes,
            Bytes(7u) + Bytes(2ull) + std::string("\1\0", 2));
  EXPECT_EQ(m.Find("tokenizer.ggml.precompiled_charsmap")->bytes, Bytes(0u) + Bytes(1ull) + "\xff");
  EXPECT_EQ(m.Find("texts")->bytes, Bytes(8u) + Bytes(1ull) + Bytes(1ull) + "x");
}

TEST_F(GgufWriterTest, TakesTensorsInPieces) {
  auto writer = GgufWriter::Create(Path("f"), GgufMetadata().U32("k", 1),
                                   {{"a", GgmlType::kF32, {5}}, {"b", GgmlType::kQ8_0, {32}}});
  ASSERT_TRUE(writer.ok()) << writer.status().ToString();
  const std::string a(20, 'a'), b(34, 'b');
  for (const auto& [text, first, n] : {std::tuple(a, 0, 7), {a, 7, 13}, {b, 0, 34}}) {
    const auto bytes = std::as_bytes(std::span(text)).subspan(first, n);
    ASSERT_TRUE(writer->Write(bytes).ok());
  }
  const uint64_t promised = writer->file_bytes();
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_EQ(fs::file_size(Path("f")), promised);
  const auto file = GgufFile::Open(Path("f"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(Text(file->FindTensor("a")->data), a);
  EXPECT_EQ(Text(file->FindTensor("b")->data), b);
}

TEST_F(GgufWriterTest, WithoutAllBytesNothingRemains) {
  {
    auto writer = GgufWriter::Create(Path("f"), {}, {{"a", GgmlType::kF32, {5}}});
    ASSERT_TRUE(writer.ok());
    const std::vector<std::byte> bytes(21);
    const Status more = writer->Write(bytes);
    EXPECT_EQ(more.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(more.message(), "tensor 'a' has 20 bytes; after 0 of them came 21");
    ASSERT_TRUE(writer->Write(std::span(bytes).first(8)).ok());
    const Status early = writer->Commit();
    EXPECT_EQ(early.code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(early.message(), "tensor 'a' was not written: 8 of 20 bytes");
    ASSERT_TRUE(writer->Write(std::span(bytes).first(12)).ok());
    EXPECT_EQ(writer->Write(std::span(bytes).first(1)).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(GgufWriterTest, CancelledCopiesLeaveNothing) {
  ASSERT_TRUE(WriteFileAtomic(Path("from"), SmallFile().Build()).ok());
  const auto file = GgufFile::Open(Path("from"));
  ASSERT_TRUE(file.ok());
  const Status status =
      CopyGguf(*file, GgufMetadata::Of(*file), Path("to"),
               [](size_t, size_t, const std::string& what) { return what != "writing a"; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.ToString();
  EXPECT_EQ(NumFiles(), 1u);
}

TEST_F(GgufWriterTest, RefusesWhatNoReaderTakes) {
  const auto expect = [&](const GgufMetadata& metadata, std::vector<GgufTensorPlan> tensors,
                          const std::string& part) {
    const Status s = GgufWriter::Create(Path("f"), metadata, std::move(tensors)).status();
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << s.ToString();
    EXPECT_NE(s.message().find(part), std::string::npos) << s.ToString();
    EXPECT_TRUE(s.message().starts_with("cannot write '" + Path("f") + "': ")) << s.ToString();
  };
  const auto f32 = GgmlType::kF32;
  expect(GgufMetadata().U32("", 1), {}, "a metadata key of 0 bytes");
  expect(GgufMetadata().U32(std::string(65536, 'k'), 1), {}, "a metadata key of 65536 bytes");
  expect({}, {{"", f32, {1}}}, "a tensor's name of 0 bytes");
  expect({}, {{"a", f32, {1}}, {"a", f32, {2}}}, "tensor 'a' is there twice");
  expect({}, {{"a", f32, {}}}, "tensor 'a' has 0 dimensions");
  expect({}, {{"a", f32, {4, 0}}}, "tensor 'a' has a dimension of 0");
  expect({}, {{"a", GgmlType::kQ4_K, {320}}}, "rows of 320 values are no multiple of the 256");
  expect({}, {{"a", static_cast<GgmlType>(77), {1}}}, "the layout of type 77 is not known");
  for (const uint32_t alignment : {0u, 4u, 48u}) {
    expect(GgufMetadata().U32("general.alignment", alignment), {}, "'general.alignment' is no u32");
  }
  expect(GgufMetadata().I32("general.alignment", 32), {}, "'general.alignment' is no u32");
  EXPECT_EQ(NumFiles(), 0u);
  EXPECT_EQ(GgufWriter::Create(Path("no/f"), {}, {}).status().code(), StatusCode::kNotFound);
}

TEST_F(GgufWriterTest, ADiskThatIsTooSmallShowsBeforeTheFirstTensor) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 4096;
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status status =
      GgufWriter::Create(Path("f"), {}, {{"a", GgmlType::kF32, {100000}}}).status();
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_NE(status.message().find("no room for the 400064 bytes of"), std::string::npos)
      << status.ToString();
  EXPECT_EQ(NumFiles(), 0u);
  const Status full = GgufWriter::Create("/dev/full", {}, {}).status();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted) << full.ToString();
}

}  // namespace
}  // namespace tq
