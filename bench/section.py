"""Replaces the generated sections of the pages with measurements, which are between `<!-- NAME -->`
and `<!-- end of NAME -->`."""
import os

# Directory of the pages with measurements.
MEASUREMENTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "measurements")


def replace(page, name, text):
    """Replaces the text between the marks of `name`, each of which must occur exactly once in the
    page, which is a file in docs/measurements."""
    path = os.path.join(MEASUREMENTS, page)
    begin, end = "<!-- %s -->\n" % name, "<!-- end of %s -->" % name
    with open(path) as f:
        document = f.read()
    if document.count(begin) != 1 or document.count(end) != 1:
        raise SystemExit("%s: expected the lines %r and %r once each" % (path, begin.strip(), end))
    before, rest = document.split(begin)
    with open(path, "w") as f:
        f.write(before + begin + text.strip("\n") + "\n" + end + rest.split(end)[1])
