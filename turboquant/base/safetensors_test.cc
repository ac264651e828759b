// Round trips, hand-made headers, and damage at every byte.
#include "turboquant/base/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>

#include "turboquant/base/exact_bytes_for_test.h"
#include "turboquant/base/file.h"

namespace tq {
namespace {

std::string FileOf(const std::string& header, const std::string& payload = "") {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + payload;
}

Status ParseStatus(const std::string& contents) {
  const ExactBytes bytes(contents);
  return SafetensorsFile::Parse(bytes.span(), "x").status();
}

void ExpectError(const std::string& contents, StatusCode code, const std::string& part) {
  const Status status = ParseStatus(contents);
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
}

TEST(Safetensors, RoundTripsEveryFloatType) {
  const std::vector<float> values = {1.0f, -2.5f, 0.0f, 65504.0f, 0.0009765625f, -0.125f};
  const std::vector<SafetensorsSource> sources = {
      {"half", {3, 2}, values, SafetensorsType::kF16},
      {"brain", {6}, {1, -2.5f, 0, 256, 0.5f, -0.125f}, SafetensorsType::kBF16},
      {"full", {1, 2, 3}, {1e-38f, 3.4e38f, -0.0f, 1.0f / 3, 2, INFINITY}, SafetensorsType::kF32},
      {"scalar", {}, {7}, SafetensorsType::kF32},
      {"empty", {0, 5}, {}, SafetensorsType::kF32},
  };
  const std::map<std::string, std::string> metadata = {{"kind", "test"}, {"\xC3\xA4", "\xCE\xB2"}};
  const Result<std::string> written = SerializeSafetensors(sources, metadata);
  ASSERT_TRUE(written.ok()) << written.status().ToString();
  const ExactBytes bytes(*written);
  const Result<SafetensorsFile> file = SafetensorsFile::Parse(bytes.span(), "memory");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->metadata(), metadata);
  EXPECT_EQ(file->tensors().size(), sources.size());
  for (const SafetensorsSource& source : sources) {
    const SafetensorsTensor* tensor = file->Find(source.name);
    ASSERT_NE(tensor, nullptr) << source.name;
    EXPECT_EQ(tensor->type, source.type);
    EXPECT_EQ(tensor->shape, source.shape);
    EXPECT_EQ(tensor->num_elements(), static_cast<int64_t>(source.values.size()));
    const Result<std::vector<float>> got = file->GetFloats(source.name, source.shape);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ(*got, source.values) << source.name;
  }
  EXPECT_EQ(file->Find("absent"), nullptr);
}

TEST(Safetensors, WritesAFileThatIsMapped) {
  const std::string path = testing::TempDir() + "tq_safetensors_test.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, {{"a", {2}, {1, 2}}}).ok());
  Result<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const SafetensorsFile moved = *std::move(file);
  EXPECT_EQ(moved.path(), path);
  EXPECT_EQ(*moved.GetFloats("a"), (std::vector<float>{1, 2}));
  moved.Release(*moved.Find("a"));
  EXPECT_EQ(*moved.GetFloats("a"), (std::vector<float>{1, 2}));
  std::filesystem::remove(path);
}

TEST(Safetensors, ConvertsIntegers) {
  const std::string payload = std::string("\x00\x00\x00\x80\xff\xff\xff\xff", 8) +  // I64
                              std::string("\xfe\xff\xff\xff", 4) +                  // I32
                              std::string("\x80\x7f", 2) + std::string("\xff\x01", 2);
  const ExactBytes bytes(FileOf(R"({"l":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                                R"("i":{"dtype":"I32","shape":[],"data_offsets":[8,12]},)"
                                R"("b":{"dtype":"I8","shape":[2],"data_offsets":[12,14]},)"
                                R"("u":{"dtype":"U8","shape":[1,2],"data_offsets":[14,16]}})",
                                payload));
  const Result<SafetensorsFile> file = SafetensorsFile::Parse(bytes.span(), "x");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(*file->GetFloats("l"), std::vector<float>{-2147483648.0f});
  EXPECT_EQ(*file->GetFloats("i"), std::vector<float>{-2});
  EXPECT_EQ(*file->GetFloats("b"), (std::vector<float>{-128, 127}));
  EXPECT_EQ(*file->GetFloats("u"), (std::vector<float>{255, 1}));
  EXPECT_STREQ(SafetensorsTypeName(file->Find("u")->type), "U8");
}

TEST(Safetensors, NamesWhatIsMissingOrOfAnotherShape) {
  const std::string written = *SerializeSafetensors({{"a", {2, 1}, {1, 2}}});
  const ExactBytes bytes(written);
  const Result<SafetensorsFile> file = SafetensorsFile::Parse(bytes.span(), "m");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->GetFloats("b").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(file->GetFloats("b").status().message(), "'m' has no tensor 'b' among its 1");
  const Status shape = file->GetFloats("a", {1, 2}).status();
  EXPECT_EQ(shape.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(shape.message(), "tensor 'a' of 'm' has shape [2, 1]; [1, 2] was expected");
  EXPECT_EQ(SafetensorsFile::Open("/no/such/file").status().code(), StatusCode::kNotFound);
}

TEST(Safetensors, RefusesMalformedHeaders) {
  const auto loss = StatusCode::kDataLoss;
  ExpectError("", loss, "it has 0 bytes, the header length alone needs 8");
  ExpectError("1234567", loss, "it has 7 bytes");
  ExpectError(std::string(8, '\xff'), loss,
              "a header of 18446744073709551615 bytes in a file of 8");
  ExpectError(FileOf(""), loss, "its header of 0 bytes is not a JSON object");
  ExpectError(FileOf("[]"), loss, "not a JSON object");
  ExpectError(FileOf("{"), loss, "not a JSON object");
  ExpectError(FileOf(std::string(100000, '[')), loss, "not a JSON object");
  ExpectError(FileOf("{\"\xff\":1}"), loss, "not a JSON object");
  ExpectError(FileOf(R"({"a":1})"), loss, "tensor 'a': its entry is not a JSON object");
  ExpectError(FileOf(R"({"a":{}})"), loss, "'dtype' is missing");
  ExpectError(FileOf(R"({"a":{"dtype":"F32"}})"), loss, "'shape' is missing");
  ExpectError(FileOf(R"({"a":{"dtype":"F32","shape":[1]}})"), loss, "'data_offsets'");
  ExpectError(FileOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,-4]}})"), loss,
              "'data_offsets'");
  ExpectError(FileOf(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "1234"), loss,
              "'shape' holds -1");
  ExpectError(FileOf(R"({"a":{"dtype":"F32","shape":["x"],"data_offsets":[0,4]}})", "1234"), loss,
              "'shape' holds string");
  ExpectError(FileOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "123"), loss,
              "its data is bytes 0 to 4 of 3");
  ExpectError(FileOf(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "1234"), loss,
              "its data is bytes 4 to 0");
  ExpectError(FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234"), loss,
              "shape [2] of F32 needs 8 bytes, but 4 are given");
  ExpectError(
      FileOf(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
             "1234"),
      loss, "needs more than 2^63 bytes");
  ExpectError(FileOf(R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", "1234"),
              StatusCode::kUnsupported, "element type 'F8_E4M3' is not supported; supported: F32");
  ExpectError(FileOf(R"({"__metadata__":[]})"), loss, "'__metadata__' is not a JSON object");
  ExpectError(FileOf(R"({"__metadata__":{"a":1}})"), loss, "metadata 'a' is not a text");
}

TEST(Safetensors, RefusesOverlapsHolesAndDuplicates) {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  ExpectError(
      FileOf("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", "1234567"),
      StatusCode::kDataLoss,
      "tensor 'b' begins at byte 3 but the data before it ends at 4 "
      "(they overlap)");
  ExpectError(
      FileOf("{" + a + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[5,7]}})", "1234567"),
      StatusCode::kDataLoss, "(a hole)");
  ExpectError(FileOf("{" + a + "}", "12345"), StatusCode::kDataLoss,
              "the tensors end at byte 4 but the file has 5 bytes of data");
  ExpectError(FileOf("{" + a + "," + a + "}", "1234"), StatusCode::kDataLoss, "'a' appears twice");
  // Equal keys inside entries and metadata are not tensors.
  EXPECT_TRUE(ParseStatus(FileOf(R"({"__metadata__":{"a":"1"},)" + a + "}", "1234")).ok());
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string whole = *SerializeSafetensors({{"a", {2}, {1, 2}}, {"b", {1}, {3}}});
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_EQ(ParseStatus(whole.substr(0, n)).code(), StatusCode::kDataLoss) << n;
  }
  EXPECT_TRUE(ParseStatus(whole).ok());
}

TEST(Safetensors, EveryFlippedBitIsAnErrorOrAValidFile) {
  const std::string whole = *SerializeSafetensors({{"a", {2}, {1, 2}}, {"b", {1}, {3}}});
  for (size_t i = 0; i < whole.size() * 8; ++i) {
    std::string damaged = whole;
    damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ (1 << (i % 8)));
    const ExactBytes bytes(damaged);
    const Result<SafetensorsFile> file = SafetensorsFile::Parse(bytes.span(), "x");
    if (!file.ok()) continue;
    for (const SafetensorsTensor& tensor : file->tensors()) {
      EXPECT_TRUE(file->GetFloats(tensor.name).ok());
    }
  }
}

TEST(Safetensors, WriterRefusesWhatTheReaderWould) {
  const auto expect = [](const Status& status, StatusCode code, const std::string& part) {
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  };
  const auto invalid = StatusCode::kInvalidArgument;
  expect(SerializeSafetensors({{"a", {3}, {1, 2}}}).status(), invalid, "2 values for shape [3]");
  expect(SerializeSafetensors({{"a", {-1}, {}}}).status(), invalid, "0 values for shape [-1]");
  expect(SerializeSafetensors({{"", {1}, {1}}}).status(), invalid, "empty, reserved or taken");
  expect(SerializeSafetensors({{"__metadata__", {1}, {1}}}).status(), invalid, "reserved");
  expect(SerializeSafetensors({{"a", {1}, {1}}, {"a", {1}, {1}}}).status(), invalid, "taken");
  expect(SerializeSafetensors({{"\xff", {1}, {1}}}).status(), invalid, "the name is not UTF-8");
  expect(SerializeSafetensors({}, {{"k", "\xff"}}).status(), invalid, "metadata is not UTF-8");
  expect(SerializeSafetensors({{"a", {1}, {1}, SafetensorsType::kI32}}).status(),
         StatusCode::kUnsupported, "as I32; supported: F32, F16, BF16");
  expect(WriteSafetensors("/no/such/folder/x", {{"a", {1}, {1}}}), StatusCode::kNotFound,
         "/no/such");
}

}  // namespace
}  // namespace tq
