// Uses the installed headers and archives: what a user's first program would do.
#include <turboquant/attention/attention.h>
#include <turboquant/cache/cache.h>
#include <turboquant/codec/record_layout.h>

#include <cstdio>

int main() {
  const tq::Result<tq::HeadFormat> format = tq::ParsePreset("k3v2");
  if (!format.ok()) return 1;
  tq::CacheConfig config;
  config.num_layers = config.num_kv_heads = 1;
  config.head_dim = 128;
  config.formats = {*format};
  const auto cache = tq::KvCache::Create(config);
  if (!cache.ok()) return 1;
  std::printf("%s: %.4f bits per value, %s\n", tq::PresetName(*format).c_str(),
              tq::BitsPerValue(*format, config.head_dim), tq::DescribeKernel(*format).c_str());
  return 0;
}
