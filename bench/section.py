"""Tables in documents that programs write: what stands between `<!-- NAME -->` and `<!-- end of NAME -->`."""


def replace(path, name, text):
    """Puts a text between the marks of a name, which the document must have once."""
    begin, end = "<!-- %s -->\n" % name, "<!-- end of %s -->" % name
    with open(path) as f:
        document = f.read()
    if document.count(begin) != 1 or document.count(end) != 1:
        raise SystemExit("%s: expected the lines %r and %r once each" % (path, begin.strip(), end))
    before, rest = document.split(begin)
    with open(path, "w") as f:
        f.write(before + begin + text.strip("\n") + "\n" + end + rest.split(end)[1])
