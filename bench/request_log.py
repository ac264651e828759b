#!/usr/bin/env python3
"""Writes a log of OpenAI requests for tq eval replay: one JSON body a line, the same for a seed.

Four kinds in turn, each over a passage of the Bible of a few hundred to two thousand tokens: a
summary (chat), going on with the text (completion), and two that ask for JSON: records of a table
one after the other (completion), and one record of many by name (chat).
"""
import argparse
import json
import pathlib
import random

NAMES = "Agatha Bruno Clarissa Dmitri Eleanor Fabian Greta Hector Ingrid Jasper Katrin Lorenzo".split()
CITIES = "Athens Bergen Cairo Denver Dublin Geneva Lisbon Oslo Prague Quito Turin Vienna".split()


def passage(verses, rng):
    start = rng.randrange(len(verses) - 100)
    return " ".join(verses[start:start + rng.randrange(12, 50)])


def table(rng):
    return [{"name": rng.choice(NAMES), "city": rng.choice(CITIES),
             "amount": rng.randrange(100, 99999) / 100, "paid": rng.random() < 0.5}
            for _ in range(rng.randrange(20, 45))]


def line_of(row):
    return (f"{row['name']} from {row['city']} owes {row['amount']:.2f}, "
            f"{'paid' if row['paid'] else 'not paid'}.")


def summary(verses, rng):
    text = passage(verses, rng)
    return {"messages": [{"role": "user",
                          "content": f"{text}\n\nSummarize this passage in two sentences."}],
            "max_tokens": 80, "temperature": 0.7}


def going_on(verses, rng):
    text = passage(verses, rng)
    return {"prompt": text[:text.rfind(" ", 0, len(text) * 9 // 10)], "max_tokens": 64}


def records(_, rng):
    rows = table(rng)
    shots = "\n".join(f"Text: {line_of(row)}\nJSON: {json.dumps(row)}" for row in rows[:-1])
    return {"prompt": f"{shots}\nText: {line_of(rows[-1])}\nJSON:", "max_tokens": 64, "stop": ["\n"],
            "temperature": 0.2}


def one_record(_, rng):
    rows = table(rng)
    lines = "\n".join(line_of(row) for row in rows)
    row = rng.choice(rows)
    return {"messages": [{"role": "user", "content":
                          f"{lines}\n\nWhat does {row['name']} from {row['city']} owe? Answer with a "
                          "JSON object with the keys name, city and amount, and with nothing else."}],
            "max_tokens": 64, "temperature": 0.2}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--text", default=".cache/bible.txt", type=pathlib.Path)
    parser.add_argument("--requests", default=24, type=int)
    parser.add_argument("--seed", default=0, type=int)
    args = parser.parse_args()
    lines = args.text.read_text(encoding="utf-8").splitlines()
    verses = [line.split(" ", 1)[1] for line in lines if " " in line]
    rng = random.Random(args.seed)
    kinds = [summary, going_on, records, one_record]
    for index in range(args.requests):
        print(json.dumps(kinds[index % len(kinds)](verses, rng)))


if __name__ == "__main__":
    main()
