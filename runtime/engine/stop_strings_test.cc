#include "runtime/engine/stop_strings.h"

#include <gtest/gtest.h>

namespace tq {
namespace {

TEST(StopStrings, WithoutAnyTextPassesThrough) {
  StopStrings stops({});
  EXPECT_EQ(stops.Push("abc"), "abc");
  EXPECT_EQ(stops.Finish(), "");
  EXPECT_FALSE(stops.stopped());
}

TEST(StopStrings, IsFoundAcrossPieces) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.Push("one E"), "one ");
  EXPECT_EQ(stops.Push("N"), "");
  EXPECT_EQ(stops.Push("D two"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.Push("more"), "");
  EXPECT_EQ(stops.Finish(), "");
}

TEST(StopStrings, WhatTurnsOutNotToBeOneIsShown) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.Push("E"), "");
  EXPECT_EQ(stops.Push("EN"), "E");
  EXPECT_EQ(stops.Push("x"), "ENx");
  EXPECT_EQ(stops.Push("EN"), "");
  EXPECT_EQ(stops.Finish(), "EN");
}

TEST(StopStrings, TheFirstInTheTextWins) {
  StopStrings stops({"world", "lo w"});
  EXPECT_EQ(stops.Push("hello world"), "hel");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopStrings, OverlappingBeginningsAreKept) {
  StopStrings stops({"aab", "ba"});
  EXPECT_EQ(stops.Push("aaa"), "a");
  EXPECT_EQ(stops.Push("c"), "aac");
  EXPECT_EQ(stops.Push("b"), "");
  EXPECT_EQ(stops.Push("a"), "");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopStrings, OneCharacterIsNeverHeldBack) {
  StopStrings stops({"\n"});
  EXPECT_EQ(stops.Push("abc"), "abc");
  EXPECT_EQ(stops.Push("d\ne"), "d");
  EXPECT_TRUE(stops.stopped());
}

}  // namespace
}  // namespace tq
