#include "turboquant/base/device.h"

#include <gtest/gtest.h>

#include <vector>

namespace tq {
namespace {

// On a machine without a card, or in a build without CUDA, everything says so and nothing crashes.
TEST(Device, WithoutADeviceEveryCallIsUnavailable) {
  if (GetCudaDeviceInfo().ok()) GTEST_SKIP() << "this machine has a device";
  for (const Status& s : {GetCudaDeviceInfo().status(), DeviceStream::Create().status(),
                          DeviceEvent::Create().status(), DeviceBuffer::Allocate(64).status()}) {
    EXPECT_EQ(s.code(), StatusCode::kUnavailable) << s.ToString();
    EXPECT_NE(s.message().find("cuda: "), std::string::npos) << s.ToString();
  }
}

TEST(Device, CopiesBytesBothWaysAndReplaysAGraph) {
  if (!GetCudaDeviceInfo().ok()) GTEST_SKIP() << GetCudaDeviceInfo().status().ToString();
  const auto stream = DeviceStream::Create();
  ASSERT_TRUE(stream.ok()) << stream.status().ToString();
  const auto buffer = DeviceBuffer::Allocate(1000);
  ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
  std::vector<uint8_t> from(1000), to(1000);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(7 * i);
  ASSERT_TRUE(buffer->Upload(from.data(), 1000, 0, *stream).ok());
  ASSERT_TRUE(buffer->Download(to.data(), 900, 100, *stream).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_TRUE(std::equal(to.begin(), to.begin() + 900, from.begin() + 100));
  ASSERT_TRUE(DeviceGraph::Begin(*stream).ok());
  ASSERT_TRUE(buffer->Fill(9, *stream).ok());
  const auto graph = DeviceGraph::End(*stream);
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();
  ASSERT_TRUE(graph->Launch(*stream).ok());
  ASSERT_TRUE(buffer->Download(to.data(), 1000, 0, *stream).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(to, std::vector<uint8_t>(1000, 9));
}

TEST(Device, AnAllocationThatCannotBeSaysHowMuchIsFree) {
  if (!GetCudaDeviceInfo().ok()) GTEST_SKIP() << GetCudaDeviceInfo().status().ToString();
  const auto buffer = DeviceBuffer::Allocate(size_t{1} << 50);
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(buffer.status().message().find("free"), std::string::npos);
  EXPECT_TRUE(DeviceBuffer::Allocate(64).ok());
}

}  // namespace
}  // namespace tq
