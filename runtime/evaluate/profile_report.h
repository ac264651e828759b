// A profile for people: where it comes from and what was measured, in words, and which layer and
// head got how many bits, as a map.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "turboquant/calibrate/profile.h"

namespace tq {

// What the profile says of itself, as (name, words): model, formats, size, calibration, quality.
std::vector<std::pair<std::string, std::string>> ProfileFacts(const Profile& profile);

// Layers down, KV heads of K and V across: bits, and what each costs alone where the profile knows
// it, as a ramp from the least to the most. `color`: with the colours of a terminal.
std::string ProfileMapText(const Profile& profile, bool color);

// The same as a section of a report, and that as a page.
std::string ProfileSection(const Profile& profile);
std::string ProfilePage(const Profile& profile, const std::string& path);

}  // namespace tq
