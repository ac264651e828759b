// Text that streams out up to the first of several stop strings.
#pragma once

#include <string>
#include <vector>

namespace tq {

class StopStrings {
 public:
  // No string may be empty.
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the next piece; returns what can be shown: everything before a stop string, and nothing
  // that may still turn out to begin one.
  std::string Push(const std::string& piece);
  // What was held back, once it is known that no more comes.
  std::string Finish();
  // True: a stop string has come; nothing is shown from there on.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace tq
