// Regular expressions over UTF-8 text (PCRE2): the one place that knows the library.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "turboquant/base/status.h"

namespace tq {

class Regex {
 public:
  // Unicode classes, look-around and lazy repeats are known; \C is not. kInvalidArgument says what
  // is wrong and where.
  static Result<Regex> Compile(const std::string& expression);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Where a search in one text stands. Room for a match and its groups; not shared by threads.
  class Match {
   public:
    Match(Match&&) noexcept;
    ~Match();
    size_t begin() const;
    size_t end() const;
    // Group 0 is the whole match; empty for one that took no part or is not there.
    std::string_view group(size_t i, std::string_view text) const;

   private:
    friend class Regex;
    struct Data;
    explicit Match(std::unique_ptr<Data> data);
    std::unique_ptr<Data> data_;
  };
  Match MakeMatch() const;

  enum class Found { kYes, kNo, kGaveUp };  // gave up: more steps than PCRE2 allows
  // The first match at `pos` or behind it. `text` must be valid UTF-8; several threads may search.
  Found Search(std::string_view text, size_t pos, Match* match) const;
  size_t num_groups() const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace tq
