// Details that must be exact, and signs of decay.
#include "runtime/evaluate/tasks/facts.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/tasks/repetition.h"

namespace tq {
namespace {

using Texts = std::vector<std::string>;

TEST(Facts, NumbersAreFoundWhateverStandsAroundThem) {
  EXPECT_EQ(FindFacts("It is 4711, or 1,234,567.50 (-3.5); at 10:30 it was 99%.").numbers,
            (Texts{"-3.5", "10:30", "1234567.50", "4711", "99"}));
  EXPECT_EQ(FindFacts("from 3-5 to 7").numbers, (Texts{"3-5", "7"}));
  EXPECT_EQ(FindFacts("K4V2 beats version 2.").numbers, (Texts{"2", "K4V2"}));
  EXPECT_EQ(FindFacts("1,23 and 12,3456").numbers, (Texts{"1,23", "12,3456"}));
  EXPECT_TRUE(FindFacts("no number here").numbers.empty());
}

TEST(Facts, NamesAreCapitalsInsideSentences) {
  EXPECT_EQ(FindFacts("The road to Paris is long. It's Maria Lopez's. I know, I'm there.").names,
            (Texts{"Lopez", "Maria", "Paris"}));
  EXPECT_EQ(FindFacts("NASA said so.\nThen Mr. Darcy left.").names, (Texts{"Darcy", "Mr", "NASA"}));
  EXPECT_EQ(
      FindFacts("in \xC3\x84gypten und \xD0\x9C\xD0\xBE\xD1\x81\xD0\xBA\xD0\xB2\xD0\xB0").names,
      (Texts{"\xC3\x84gypten", "\xD0\x9C\xD0\xBE\xD1\x81\xD0\xBA\xD0\xB2\xD0\xB0"}));
  EXPECT_TRUE(FindFacts("Nothing. But: This? Neither!").names.empty());
}

TEST(Facts, QuotedStringsAreWhole) {
  EXPECT_EQ(
      FindFacts("He said \"go home\" and \xE2\x80\x9Cstay\xE2\x80\x9D; run ` ls -l `.").quotes,
      (Texts{"go home", "ls -l", "stay"}));
  EXPECT_TRUE(FindFacts("a 5\" pipe and an open \"quote\nno").quotes.empty());
}

TEST(Facts, AnyBytesAreRead) {
  std::string bytes;
  for (int i = 0; i < 512; ++i) bytes += static_cast<char>(i * 37);
  (void)FindFacts(bytes);
  EXPECT_TRUE(FindFacts("").empty());
  EXPECT_EQ(FindFacts("7\xff"
                      "8")
                .numbers,
            (Texts{"7", "8"}));
}

TEST(Facts, AgreementIsTheShareInBoth) {
  const Facts a = FindFacts("pay 100 to Anna by 5 May");
  const Facts b = FindFacts("pay 100 to Anna by 6 May");
  EXPECT_NEAR(*FactAgreement(a, b), 3.0 / 5, 1e-12);  // 100, Anna, May of those and 5, 6
  EXPECT_EQ(*FactAgreement(a, a), 1);
  EXPECT_EQ(*FactAgreement(a, FindFacts("nothing")), 0);
  EXPECT_FALSE(FactAgreement(FindFacts("yes"), FindFacts("no")).has_value());
  EXPECT_EQ(FactsOnlyIn(a, b), (Texts{"5"}));
  EXPECT_EQ(Union({a, b}).numbers, (Texts{"100", "5", "6"}));
}

TEST(Repetition, ALoopIsSeenAndProseIsNot) {
  EXPECT_EQ(RepeatedShare("one two three four five six seven eight nine"), 0);
  std::string loop;
  for (int i = 0; i < 50; ++i) loop += "And so it went. ";
  EXPECT_GT(RepeatedShare(loop), 0.95);
  EXPECT_EQ(RepeatedShare(""), 0);
  EXPECT_EQ(RepeatedShare("a b c d"), 0);
  EXPECT_EQ(RepeatedShare("a b c d A B C D"), 1 - 4.0 / 5);  // the last of five runs
}

TEST(Repetition, QuartersHoldEqualNumbersOfWords) {
  EXPECT_EQ(Quarters("a b  c d e f\ng h", 8), (Texts{"a b", "c d", "e f", "g h"}));
  EXPECT_TRUE(Quarters("a b c", 8).empty());
  EXPECT_TRUE(Quarters("", 0).empty());
}

}  // namespace
}  // namespace tq
