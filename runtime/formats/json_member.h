// Changes one member of a JSON object in its text: everything else stays byte for byte.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "turboquant/base/status.h"

namespace tq {

// `text` (a JSON object) with the member `key` set to `value`, a JSON text that is indented to fit;
// in its place, or behind the last member. No value: without the member. kDataLoss: `text` is no
// JSON object, nests too deeply, or has the key twice.
Result<std::string> WithJsonMember(std::string_view text, std::string_view key,
                                   const std::optional<std::string>& value);

}  // namespace tq
