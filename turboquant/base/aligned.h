// A resizable buffer aligned for SIMD, zero-initialized, without value semantics.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "turboquant/base/numeric.h"

namespace tq {

inline constexpr size_t kCacheLine = 64;

template <typename T>
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t n) { Resize(n); }
  // Discards the contents; all elements become zero bytes. Throws std::bad_alloc like a vector.
  void Resize(size_t n) {
    const size_t bytes = RoundUp(n * sizeof(T), kCacheLine);
    T* p = bytes == 0 ? nullptr : static_cast<T*>(std::aligned_alloc(kCacheLine, bytes));
    if (bytes != 0 && p == nullptr) throw std::bad_alloc();
    if (p != nullptr) std::memset(static_cast<void*>(p), 0, bytes);
    data_.reset(p);
    size_ = n;
  }
  // Grows only; the contents are lost when it does.
  void Reserve(size_t n) {
    if (n > size_) Resize(n);
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  std::span<T> span() { return {data_.get(), size_}; }
  std::span<const T> span() const { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(static_cast<void*>(p)); }
  };
  std::unique_ptr<T[], Free> data_;
  size_t size_ = 0;
};

}  // namespace tq
