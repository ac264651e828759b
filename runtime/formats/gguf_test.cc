// A synthetic file read back, every malformed case by name, and damage at every byte.
#include "runtime/formats/gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "runtime/formats/gguf_builder_for_test.h"
#include "runtime/formats/type_counts.h"
#include "turboquant/base/exact_bytes_for_test.h"
#include "turboquant/base/file.h"

namespace tq {
namespace {

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string U32(uint32_t value) {
  return Bytes(value);
}
std::string U64(uint64_t value) {
  return Bytes(value);
}

void ExpectError(const std::string& contents, StatusCode code, const std::string& part) {
  const ExactBytes bytes(contents);
  const Status status = GgufFile::Parse(bytes.span(), "x.gguf").status();
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  EXPECT_EQ(status.message().rfind("cannot read 'x.gguf': ", 0), 0u) << status.ToString();
}

// Every metadata type, and tensors of three types.
GgufBuilder SmallFile() {
  GgufBuilder b;
  b.Text("general.architecture", "llama").U32("u32", 4000000000u).I32("i32", -5).F32("f32", 0.5f);
  b.Bool("yes", true).Texts("words", {"a", "", "bc"}).I32s("ints", {1, -2}).F32s("floats", {0.25f});
  b.Raw("u8", 0, "\xff").Raw("i8", 1, "\xff").Raw("u16", 2, "\xff\xff").Raw("i16", 3, "\xff\xff");
  b.Raw("u64", 10, U64(~0ull)).Raw("i64", 11, U64(~0ull)).Raw("f64", 12, Bytes(0.1));
  b.Raw("bools", 9, U32(7) + U64(2) + std::string("\x01\x00", 2));
  b.Tensor("a", GgmlType::kF32, {3}, std::string(12, 'a'));
  b.Tensor("b", GgmlType::kQ4_0, {64, 2}, std::string(72, 'b'));
  b.Tensor("c", GgmlType::kF16, {1, 1, 2, 1}, "cccc");
  return b;
}

TEST(Gguf, ReadsEveryType) {
  for (const uint32_t version : {2u, 3u}) {
    const ExactBytes bytes(SmallFile().Build(version));
    const Result<GgufFile> file = GgufFile::Parse(bytes.span(), "x");
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->file_bytes(), bytes.size);
    EXPECT_EQ(file->metadata().size(), 16u);
    EXPECT_EQ(*file->GetString("general.architecture"), "llama");
    EXPECT_EQ(*file->GetInt("u32"), 4000000000);
    EXPECT_EQ(*file->GetInt("i32"), -5);
    EXPECT_EQ(*file->GetFloat("f32"), 0.5);
    EXPECT_EQ(*file->GetFloat("f64"), 0.1);
    EXPECT_EQ(*file->GetFloat("i32"), -5.0);
    EXPECT_EQ(*file->GetBool("yes"), true);
    EXPECT_EQ(*file->GetInt("u8"), 255);
    EXPECT_EQ(*file->GetInt("i8"), -1);
    EXPECT_EQ(*file->GetInt("u16"), 65535);
    EXPECT_EQ(*file->GetInt("i16"), -1);
    EXPECT_EQ(*file->GetInt("i64"), -1);
    EXPECT_EQ(*file->GetStrings("words"), (std::vector<std::string>{"a", "", "bc"}));
    EXPECT_EQ(*file->GetInts("ints"), (std::vector<int64_t>{1, -2}));
    EXPECT_EQ(*file->GetInts("bools"), (std::vector<int64_t>{1, 0}));
    EXPECT_EQ(*file->GetFloats("floats"), std::vector<double>{0.25});
    EXPECT_EQ(*file->GetFloats("ints"), (std::vector<double>{1, -2}));
    EXPECT_TRUE(file->Has("u8"));
    EXPECT_FALSE(file->Has("U8"));
    ASSERT_EQ(file->tensors().size(), 3u);
    const GgufTensor* b = file->FindTensor("b");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->type, GgmlType::kQ4_0);
    EXPECT_EQ(b->shape, (std::vector<int64_t>{64, 2}));
    EXPECT_EQ(b->num_elements(), 128);
    ASSERT_EQ(b->data.size(), 72u);
    EXPECT_EQ(static_cast<char>(b->data[71]), 'b');
    EXPECT_EQ(file->FindTensor("d"), nullptr);
    file->Release(*b);
  }
}

TEST(Gguf, TypedAccessNamesWhatItFound) {
  const ExactBytes bytes(SmallFile().Build());
  const Result<GgufFile> file = GgufFile::Parse(bytes.span(), "x");
  ASSERT_TRUE(file.ok());
  const auto expect = [](const Status& status, const std::string& message) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), message);
  };
  EXPECT_EQ(file->GetInt("none").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(file->GetInt("none").status().message(), "'x' has no metadata 'none'");
  expect(file->GetInt("f32").status(), "metadata 'f32' is a float; an integer was expected");
  expect(file->GetInt("u64").status(),
         "metadata 'u64' is 18446744073709551615, which exceeds 2^63 - 1");
  expect(file->GetFloat("words").status(),
         "metadata 'words' is an array of strings; a number was expected");
  expect(file->GetString("yes").status(), "metadata 'yes' is a bool; a string was expected");
  expect(file->GetBool("u8").status(), "metadata 'u8' is an unsigned integer; a bool was expected");
  expect(file->GetStrings("ints").status(),
         "metadata 'ints' is an array of integers; an array of strings was expected");
  expect(file->GetInts("floats").status(),
         "metadata 'floats' is an array of floats; an array of integers was expected");
  expect(file->GetFloats("general.architecture").status(),
         "metadata 'general.architecture' is a string; an array of numbers was expected");
}

TEST(Gguf, KnowsItsTypes) {
  EXPECT_EQ(GgmlTypeName(GgmlType::kQ4_1), "Q4_1");
  EXPECT_EQ(GgmlShape(GgmlType::kQ4_1).block_len, 32);
  EXPECT_EQ(GgmlShape(GgmlType::kQ4_1).block_bytes, 20);
  EXPECT_EQ(GgmlShape(GgmlType::kQ6_K).block_bytes, 210);
  EXPECT_EQ(GgmlTypeName(static_cast<GgmlType>(77)), "type 77");
  EXPECT_EQ(GgmlShape(static_cast<GgmlType>(77)).block_len, 0);
  EXPECT_EQ(GgmlTypeName(static_cast<GgmlType>(23)), "IQ4_XS");
}

TEST(TypeCounts, MostFirstThenByName) {
  EXPECT_EQ(TypeCountsText({{"F32", 61}, {"Q4_0", 2}, {"Q4_1", 210}, {"F16", 2}}),
            "Q4_1 (210), F32 (61), F16 (2), Q4_0 (2)");
  EXPECT_EQ(TypeCountsText({}), "");
}

TEST(Gguf, RefusesOtherFiles) {
  ExpectError("", StatusCode::kDataLoss, "not a GGUF file: its 0 bytes");
  ExpectError("GGU", StatusCode::kDataLoss, "not a GGUF file: its 3 bytes");
  ExpectError("GGML" + std::string(61, '\0'), StatusCode::kDataLoss, "not a GGUF file");
  ExpectError(GgufBuilder().Build(1), StatusCode::kUnsupported,
              "its version is 1; supported: 2, 3");
  ExpectError(GgufBuilder().Build(4), StatusCode::kUnsupported,
              "its version is 4; supported: 2, 3");
  ExpectError(GgufBuilder().Build(0), StatusCode::kUnsupported, "its version is 0");
  ExpectError(GgufBuilder().Build(0x03000000), StatusCode::kUnsupported, "it is big-endian");
  EXPECT_EQ(GgufFile::Open("/no/such.gguf").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open(testing::TempDir()).status().code(), StatusCode::kNotFound);
}

TEST(Gguf, HugeCountsAllocateNothing) {
  const std::string head = "GGUF" + U32(3);
  const auto loss = StatusCode::kDataLoss;
  ExpectError(head + U64(1ull << 60) + U64(0), loss, "1152921504606846976 tensors do not fit");
  ExpectError(head + U64(0) + U64(1ull << 60), loss, "1152921504606846976 metadata values and 0");
  ExpectError(head + U64(0) + U64(~0ull) + std::string(41, '\0'), loss, "do not fit into the 41");
  for (uint32_t type = 0; type <= 12; ++type) {
    if (type == 9) continue;
    ExpectError(GgufBuilder().Raw("k", 9, U32(type) + U64(1ull << 61)).Build(), loss,
                "an array of 2305843009213693952");
  }
  ExpectError(GgufBuilder().Raw("k", 8, U64(~0ull)).Build(), loss,
              "a string of 18446744073709551615 bytes at byte ");
  ExpectError(head + U64(0) + U64(1) + U64(~0ull) + "keykeykeykey", loss,
              "a metadata key of 18446744073709551615 bytes at byte 32");
}

TEST(Gguf, RefusesMalformedMetadata) {
  const auto loss = StatusCode::kDataLoss;
  ExpectError(GgufBuilder().U32("", 1).Build(), loss, "a metadata key at byte 24 is empty");
  ExpectError(GgufBuilder().U32(std::string(65536, 'k'), 1).Build(), loss, "has 65536 bytes");
  std::string twice = GgufBuilder().U32("k", 1).U32("l", 1).Build();
  twice[twice.find('l')] = 'k';
  ExpectError(twice, loss, "metadata 'k' appears twice");
  ExpectError(GgufBuilder().Raw("k", 13, "12345678").Build(), loss, "has type 13");
  ExpectError(GgufBuilder().Raw("k", 7, "\x02").Build(), loss, "is 2; 0 or 1 was expected");
  ExpectError(GgufBuilder().Raw("k", 9, U32(13) + U64(0)).Build(), loss, "is 13, not 0 to 12");
  ExpectError(GgufBuilder().Raw("k", 9, U32(9) + U64(1) + U32(4) + U64(0)).Build(),
              StatusCode::kUnsupported, "metadata 'k': arrays of arrays");
  ExpectError(GgufBuilder().Raw("k", 9, U32(10) + U64(1) + U64(~0ull)).Build(),
              StatusCode::kUnsupported, "which exceeds 2^63 - 1");
  ExpectError(GgufBuilder().Alignment(32).Raw("split.count", 2, std::string("\x03\x00", 2)).Build(),
              StatusCode::kUnsupported, "one of 3 parts of a split model");
}

TEST(Gguf, RefusesMalformedAlignment) {
  const auto loss = StatusCode::kDataLoss;
  for (const uint32_t alignment : {0u, 1u, 7u, 12u, 33u}) {
    ExpectError(GgufBuilder().U32("general.alignment", alignment).Build(), loss,
                "'general.alignment' is " + std::to_string(alignment) + "; a power of two");
  }
  ExpectError(GgufBuilder().I32("general.alignment", 32).Build(), loss, "is not of type u32");
  ExpectError(GgufBuilder().Text("general.alignment", "32").Build(), loss, "is not of type u32");
  ExpectError(GgufBuilder().Raw("general.alignment", 9, U32(4) + U64(0)).Build(), loss,
              "is not of type u32");
  GgufBuilder wide;
  wide.U32("general.alignment", 1u << 31).Tensor("a", GgmlType::kF32, {1}, "aaaa");
  ExpectError(wide.Build(), loss, "the data begins at the next multiple of 2147483648");
  const ExactBytes bytes(
      GgufBuilder().Alignment(64).Tensor("a", GgmlType::kF32, {1}, "aaaa").Build());
  EXPECT_TRUE(GgufFile::Parse(bytes.span(), "x").ok());
}

TEST(Gguf, RefusesMalformedTensors) {
  const auto loss = StatusCode::kDataLoss;
  const auto one = [](std::string_view name, uint32_t type, const std::vector<uint64_t>& shape,
                      uint64_t offset = 0) {
    return GgufBuilder().TensorAt(name, type, shape, offset, std::string(64, 'x')).Build();
  };
  ExpectError(one("", 0, {1}), loss, "a tensor name at byte 24 is empty");
  ExpectError(one("a", 0, {}), loss, "tensor 'a' has 0 dimensions");
  ExpectError(one("a", 0, {1, 1, 1, 1, 1}), loss, "tensor 'a' has 5 dimensions");
  ExpectError(one("a", 0, {0}), loss, "tensor 'a': dimension 0 is 0");
  ExpectError(one("a", 0, {4, 0}), loss, "tensor 'a': dimension 1 is 0");
  ExpectError(one("a", 0, {~0ull}), loss, "dimension 0 is 18446744073709551615");
  ExpectError(one("a", 0, {(1ull << 42) + 1}), loss,
              "tensor 'a' needs 17592186044420 bytes from byte 0 of the data, which has 64");
  ExpectError(one("a", 0, {1ull << 32, 1ull << 32}), loss, "dimension 1 is 4294967296");
  ExpectError(one("a", 0, {1ull << 62, 4}), loss, "dimension 0 is");
  ExpectError(one("a", 77, {1}), StatusCode::kUnsupported, "tensor 'a' has type 77");
  ExpectError(one("a", 2, {33}), loss,
              "rows of 33 values are no multiple of the 32 values of a Q4_0");
  ExpectError(one("a", 0, {1}, 8), loss, "no multiple of the alignment 32");
  ExpectError(one("a", 0, {1}, 96), loss, "needs 4 bytes from byte 96 of the data, which has 64");
  ExpectError(one("a", 0, {17}), loss, "needs 68 bytes");
  ExpectError(one("a", 0, {1}, ~0ull - 31), loss, "needs 4 bytes from byte 18446744073709551584");
  ExpectError(GgufBuilder()
                  .TensorAt("a", 0, {16}, 0, std::string(64, 'x'))
                  .TensorAt("b", 0, {1}, 32, "")
                  .Build(),
              loss, "tensors 'a' (64 bytes from byte 0) and 'b' (from byte 32) overlap");
  ExpectError(GgufBuilder()
                  .TensorAt("a", 0, {1}, 0, std::string(64, 'x'))
                  .TensorAt("a", 0, {1}, 32, "")
                  .Build(),
              loss, "tensor 'a' appears twice");
}

TEST(Gguf, EveryTruncationIsAnErrorUpToTheLastTensorByte) {
  const std::string whole = SmallFile().Build();
  for (size_t n = 0; n < whole.size(); ++n) {
    const ExactBytes bytes(whole.substr(0, n));
    const Status status = GgufFile::Parse(bytes.span(), "x").status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << n << ": " << status.ToString();
  }
  for (const std::string& padding : {std::string(), std::string(28, '\0'), std::string("junk")}) {
    const ExactBytes bytes(whole + padding);
    EXPECT_TRUE(GgufFile::Parse(bytes.span(), "x").ok()) << "padding at the end may be missing";
  }
}

TEST(Gguf, EveryChangedByteIsAnErrorOrAValidFile) {
  const std::string whole = SmallFile().Build();
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flip : {0x01, 0x02, 0x08, 0x40, 0x80, 0xFF}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      const ExactBytes bytes(damaged);
      const Result<GgufFile> file = GgufFile::Parse(bytes.span(), "x");
      if (!file.ok()) continue;
      size_t sum = 0;
      for (const GgufTensor& tensor : file->tensors()) {
        for (const std::byte b : tensor.data) sum += static_cast<size_t>(b);
      }
      EXPECT_GT(sum, 0u);
    }
  }
}

TEST(Gguf, OpensARealModel) {
  const std::string path = TQ_DATA_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!FileExists(path)) GTEST_SKIP() << path << " is not there";
  const Result<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(*file->GetString("general.architecture"), "llama");
  EXPECT_EQ(*file->GetInt("llama.block_count"), 30);
  EXPECT_EQ(file->GetStrings("tokenizer.ggml.tokens")->size(), 49152u);
  const GgufTensor* q = file->FindTensor("blk.0.attn_q.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->shape, (std::vector<int64_t>{576, 576}));
  const std::byte first = q->data[0];
  file->Release(*q);
  EXPECT_EQ(q->data[0], first);
}

}  // namespace
}  // namespace tq
