"""WordCount: counts the words in texts. `wordcount.py FILE...` prints the words, the most frequent first."""
import collections
import re
import sys

import cool
import cool.map


def count(world, files):
    """Returns how often each word occurs in the files. Each file is a partition."""
    texts = cool.map.Partitions(len(files))

    def load(number):
        with open(files[number], encoding="utf-8") as file:
            return file.read()

    def program(job):
        job.deal(texts, load)
        words = job.map(texts, cool.map.Keyed("sum"), lambda text: collections.Counter(re.findall(r"[^\W_]+", text.lower())))
        return job.combine(job.regroup(words))

    return cool.map.run(world, program)


def main(world):
    driver = world.rank == 0
    words = count(world, sys.argv[1:])
    for word, n in sorted(words.items(), key=lambda item: (-item[1], item[0])) if driver else ():
        print(n, word)


if __name__ == "__main__":
    cool.launch(main)
