#!/usr/bin/python3
"""Plots the accuracy of the picture classifier over the size of its vocabulary, as figure 10 of
Zhang, Qiu et al., "Large-Scale Image Classification using High Performance Clustering".

    bench/vocabulary.py train/ test/    # directories or tar files with a directory for each class
    bench/vocabulary.py --split 70 scenes/ -- --pyramid 3   # train with 70 pictures of each class
    bench/vocabulary.py --words 25,100,400 --seeds 3 train/ test/

For each number of words and each seed, it runs `cool-kmeans classify train` and `classify test`;
arguments after -- are passed to `train`. Writes vocabulary.json and vocabulary.svg, which shows the
mean over seeds and each seed as a dot, to the directory of --out. Needs cool-kmeans (--program).
"""
import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(ROOT, "mininet"))
from build_directory import TARGET  # noqa: E402

ENDINGS = (".jpg", ".jpeg", ".png")


class Failure(Exception):
    """A failure whose reason is printed to the user in one line."""


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("pictures", nargs="+", metavar="DIR",
                   help="directories for training and for the test, or with --split one for both")
    p.add_argument("--split", type=int, metavar="N",
                   help="draw N pictures of each class for training with each seed, and test with the others")
    p.add_argument("--words", default="25,50,100,200,400,800,1600", help="sizes of the vocabulary; default %(default)s")
    p.add_argument("--seeds", type=int, default=1, metavar="N", help="runs with seeds 1 to N; default %(default)s")
    p.add_argument("--program", default=os.path.join(TARGET, "release", "cool-kmeans"),
                   help="path of cool-kmeans; default %(default)s")
    p.add_argument("--out", default=os.path.join(TARGET, "bench"),
                   help="output directory; default %(default)s")
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        index = arguments.index("--")
        arguments, options = arguments[:index], arguments[index + 1:]
    parsed = p.parse_args(arguments)
    parsed.options = options
    if len(parsed.pictures) != (1 if parsed.split else 2):
        p.error("expected a directory for training and one for the test, or a single one with "
                "--split")
    return parsed


def split(folder, count, seed, target):
    """Creates two directories of links in `target`: `count` random pictures of each class, and all
    others. Returns both paths."""
    generator = random.Random(seed)
    for name in sorted(os.listdir(folder)):
        class_folder = os.path.join(folder, name)
        if not os.path.isdir(class_folder):
            continue
        files = sorted(f for f in os.listdir(class_folder) if f.lower().endswith(ENDINGS))
        if len(files) <= count:
            raise Failure("%s: the class has %d pictures, of which --split %d leaves none for the "
                          "test" % (class_folder, len(files), count))
        training_files = set(generator.sample(files, count))
        for file in files:
            part = os.path.join(target, "train" if file in training_files else "test", name)
            os.makedirs(part, exist_ok=True)
            os.symlink(os.path.abspath(os.path.join(class_folder, file)), os.path.join(part, file))
    return os.path.join(target, "train"), os.path.join(target, "test")


def accuracy(program, train, test, words, seed, options):
    """Returns the accuracy of a classifier with this number of words."""
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "m.cool")
        run([program, "classify", "train", "--words", str(words), "--seed", str(seed), "--model", model, "--json", *options, train])
        return json.loads(run([program, "classify", "test", "--model", model, "--json", test]))["accuracy"]


def run(command):
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if process.returncode:
        raise Failure(process.stderr.strip() or "%s exited with status %d"
                      % (command[0], process.returncode))
    return process.stdout


# Position and size of the drawing area of the plot.
LEFT, TOP, WIDTH, HEIGHT, BOTTOM = 56, 16, 560, 280, 46


def plot(rows):
    """Returns the plot as SVG: accuracy in percent over words on a logarithmic scale."""
    values = [100 * a for row in rows for a in row["accuracy"]]
    low, high = 5 * math.floor(min(values) / 5), max(5 * math.ceil(max(values) / 5), 5 * math.floor(min(values) / 5) + 5)
    first, last = math.log(rows[0]["words"]), math.log(rows[-1]["words"])

    def x(words):
        return LEFT + 20 + (WIDTH - 40) * ((math.log(words) - first) / (last - first) if last > first else 0.5)

    def y(percent):
        return TOP + HEIGHT * (1 - (percent - low) / (high - low))

    total = (LEFT + WIDTH, TOP + HEIGHT + BOTTOM)
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="DejaVu Sans, sans-serif" font-size="12" fill="#66737f">' % total,
             '<rect width="100%" height="100%" fill="#fff"/>']
    for percent in range(low, high + 1, 5):
        parts.append('<path d="M%d %.1fH%d" stroke="#dfe5ea"/><text x="%d" y="%.1f" text-anchor="end">%d %%</text>'
                     % (LEFT, y(percent), LEFT + WIDTH, LEFT - 8, y(percent) + 4, percent))
    means = []
    for row in rows:
        mean = 100 * sum(row["accuracy"]) / len(row["accuracy"])
        means.append("%.1f,%.1f" % (x(row["words"]), y(mean)))
        parts.append('<text x="%.1f" y="%d" text-anchor="middle">%d</text>' % (x(row["words"]), TOP + HEIGHT + 18, row["words"]))
        parts += ['<circle cx="%.1f" cy="%.1f" r="3" fill="#3b7dd8" fill-opacity="0.4"/>' % (x(row["words"]), y(100 * a)) for a in row["accuracy"]]
    parts.append('<polyline points="%s" fill="none" stroke="#3b7dd8" stroke-width="2.5" stroke-linejoin="round"/>' % " ".join(means))
    parts.append('<text x="%d" y="%d" text-anchor="middle">words in the vocabulary</text></svg>' % (LEFT + WIDTH / 2, TOP + HEIGHT + 38))
    return "\n".join(parts) + "\n"


def main():
    arguments = parse_arguments()
    rows = [{"words": int(words), "accuracy": []} for words in arguments.words.split(",")]
    rows.sort(key=lambda row: row["words"])
    for seed in range(1, arguments.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            parts = split(arguments.pictures[0], arguments.split, seed, folder) if arguments.split else arguments.pictures
            for row in rows:
                row["accuracy"].append(accuracy(arguments.program, *parts, row["words"], seed, arguments.options))
                print("%6d words, seed %d: %.1f %%" % (row["words"], seed, 100 * row["accuracy"][-1]), flush=True)
    os.makedirs(arguments.out, exist_ok=True)
    with open(os.path.join(arguments.out, "vocabulary.json"), "w") as f:
        json.dump({"arguments": vars(arguments), "rows": rows}, f, indent=1)
    with open(os.path.join(arguments.out, "vocabulary.svg"), "w") as f:
        f.write(plot(rows))


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError, ValueError, KeyError) as e:
        sys.exit("vocabulary: %s" % e)
